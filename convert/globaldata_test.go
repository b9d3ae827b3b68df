package convert_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/convert"
)

// globalData converts one value of globalData, as it is written. It returns what the variable is
// then, as JSON, and what is said of it.
func globalData(t *testing.T, value string) (variable, notes string) {
	t.Helper()
	manifest := "apiVersion: bpfman.io/v1alpha1\nkind: XdpProgram\nmetadata: {name: x}\nspec:\n  name: f\n  nodeSelector: {}\n" +
		"  interfaceSelector: {primaryNodeInterface: true}\n  byteCode: {image: {url: \"registry.example.com/x:v1\"}}\n  globalData:\n    V: " + value + "\n"
	r, err := convert.Convert(t.Context(), []byte(manifest), convert.Options{})
	if err != nil || len(r.Documents) != 1 {
		t.Fatalf("%s: %d documents, %v, %v", value, len(r.Documents), r.Left, err)
	}
	var app v1alpha1.ClusterBpfApplication
	if err := yaml.UnmarshalStrict(r.Documents[0].YAML, &app); err != nil {
		t.Fatalf("%s: %v in\n%s", value, err, r.Documents[0].YAML)
	}
	return string(app.Spec.Variables["V"].Raw), string(r.Documents[0].YAML)
}

func TestANumberOfGlobalDataIsThatNumber(t *testing.T) {
	forms := []string{"%d", "0x%x", "0X%X", "0o%o", "0%o", "0b%b"}
	for _, n := range []uint64{0, 1, 9, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x12345678, math.MaxUint32, 1 << 53, 1<<53 + 1, math.MaxInt64, 1 << 63, math.MaxUint64} {
		want := strconv.FormatUint(n, 10)
		if n > 1<<53 {
			want = strconv.Quote(want)
		}
		for _, form := range forms {
			value := fmt.Sprintf(form, n)
			if got, notes := globalData(t, value); got != want || !strings.Contains(notes, value+" is taken as a number") {
				t.Errorf("%s became %s, want %s", value, got, want)
			}
		}
	}
	for value, want := range map[string]string{
		"-1": "-1", "-0x80": "-128", "+5": "5", "1_000": "1000", "0x00000001": "1", "-9223372036854775808": `"-9223372036854775808"`,
	} {
		if got, _ := globalData(t, value); got != want {
			t.Errorf("%s became %s, want %s", value, got, want)
		}
	}
}

func TestWhatIsNoValueOfGlobalDataIsLeftOut(t *testing.T) {
	for _, value := range []string{
		"true", "null", "~", "", "1.5", ".inf", "18446744073709551616", "[256]", "[-1]", "[1.5]", "[x]", "[[1]]", "{a: 1}", `"0x1"`, "2026-01-01",
	} {
		if got, notes := globalData(t, value); got != "" || !strings.Contains(notes, "TODO spec.globalData.V: ") || !strings.Contains(notes, "is left out") {
			t.Errorf("%q became %q, in\n%s", value, got, notes)
		}
	}
}

// FuzzGlobalData holds that bytes and numbers come through, however they are written.
func FuzzGlobalData(f *testing.F) {
	f.Add([]byte{1}, int64(-1))
	f.Add([]byte{0xd, 0xc, 0xb, 0xa}, int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, data []byte, n int64) {
		if data = data[:min(len(data), 16)]; len(data) > 0 {
			var list, numbers []string
			for _, b := range data {
				list, numbers = append(list, fmt.Sprintf("0x%02X", b)), append(numbers, strconv.Itoa(int(b)))
			}
			for _, value := range []string{
				"[" + strings.Join(list, ", ") + "]", "[" + strings.Join(numbers, ", ") + "]", strconv.Quote(base64.StdEncoding.EncodeToString(data)),
			} {
				if got, notes := globalData(t, value); got != "" || !strings.Contains(notes, "bytes 0x"+hex.EncodeToString(data)) {
					t.Errorf("%s is not said to be %x, but %q in\n%s", value, data, got, notes)
				}
			}
		}
		want := strconv.FormatInt(n, 10)
		for _, value := range []string{want, strings.Replace(fmt.Sprintf("0x%x", n), "0x-", "-0x", 1)} {
			if got, _ := globalData(t, value); strings.Trim(got, `"`) != want {
				t.Errorf("%s became %s", value, got)
			}
		}
	})
}
