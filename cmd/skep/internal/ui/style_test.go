package ui

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// colors are the custom properties with a colour in a part of the style sheet.
func colors(css string, all map[string]string) map[string]string {
	for _, m := range regexp.MustCompile(`--([\w-]+): #([0-9a-f]{6}|[0-9a-f]{3});`).FindAllStringSubmatch(css, -1) {
		if all[m[1]] = m[2]; len(m[2]) == 3 {
			all[m[1]] = strings.Repeat(m[2][:1], 2) + strings.Repeat(m[2][1:2], 2) + strings.Repeat(m[2][2:], 2)
		}
	}
	return all
}

// contrast is that of WCAG 2.2 between two colours.
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	luminance := func(color string) (sum float64) {
		for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
			n, err := strconv.ParseUint(color[2*i:2*i+2], 16, 8)
			if err != nil {
				t.Fatal(err)
			}
			v := float64(n) / 255
			if v <= 0.04045 {
				v /= 12.92
			} else {
				v = math.Pow((v+0.055)/1.055, 2.4)
			}
			sum += weight * v
		}
		return sum
	}
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// TestColorsCanBeSeen with the contrast that WCAG 2.2 asks of text (AA), and of what tells states and fields apart, in both schemes.
func TestColorsCanBeSeen(t *testing.T) {
	css, err := page.ReadFile("page/style.css")
	if err != nil {
		t.Fatal(err)
	}
	light, rest, _ := strings.Cut(string(css), "@media (prefers-color-scheme: dark)")
	dark, _, _ := strings.Cut(rest, "@media")
	for scheme, of := range map[string]map[string]string{"light": colors(light, map[string]string{}), "dark": colors(dark, colors(light, map[string]string{}))} {
		tones := []string{"good", "bad", "wait", "busy", "kept", "odd", "none"}
		texts := []string{"text", "muted", "accent"}
		for _, tone := range tones {
			texts = append(texts, tone+"-text")
		}
		check := func(least float64, ground string, names ...string) {
			for _, name := range names {
				if got := contrast(t, of[name], of[ground]); got < least {
					t.Errorf("%s: %s on %s has a contrast of %.2f, want %.1f", scheme, name, ground, got, least)
				}
			}
		}
		for _, ground := range []string{"ground", "surface", "raised", "wash"} {
			check(4.5, ground, texts...)
			check(3, ground, append(slices.Clone(tones), "edge", "focus")...)
		}
		check(3, "mark", "good", "bad", "kept", "odd")
		check(3, "dark-mark", "wait")
	}
}
