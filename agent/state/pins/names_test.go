package pins

import (
	"strings"
	"testing"
)

func TestNamesAreEscapedForTheFileSystemAndBack(t *testing.T) {
	for name, want := range map[string]string{
		"count_packets":         "count_packets",
		".rodata":               "%2erodata",
		"a/b":                   "a%2fb",
		"+xdp":                  "%2bxdp",
		"100%":                  "100%25",
		"f@tp_btf/sys_enter":    "f%40tp_btf%2fsys_enter",
		"":                      "",
		"0b5e7b0c-7f2d-4a52-9e": "0b5e7b0c-7f2d-4a52-9e",
		"ü":                     "%c3%bc",
	} {
		if got := escape(name); got != want {
			t.Errorf("escape(%q) = %q, want %q", name, got, want)
		}
		if got := unescape(escape(name)); got != name {
			t.Errorf("unescape(escape(%q)) = %q", name, got)
		}
	}
	if err := CheckName("map", strings.Repeat("x", maxName)); err != nil {
		t.Errorf("CheckName of the longest = %v", err)
	}
	// What counts is the name as it is written.
	for _, long := range []string{strings.Repeat("x", maxName+1), strings.Repeat(".", maxName/3+1)} {
		if err := CheckName("map", long); err == nil || !strings.Contains(err.Error(), "shorten") {
			t.Errorf("CheckName of %d bytes = %v", len(long), err)
		}
	}
	for _, broken := range []string{"%", "%2", "%zz", "a%"} {
		if got := unescape(broken); got != broken {
			t.Errorf("unescape(%q) = %q", broken, got)
		}
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("a.b/c+d%")
	f.Fuzz(func(t *testing.T, name string) {
		got := escape(name)
		if strings.ContainsAny(got, "./+") {
			t.Errorf("escape(%q) = %q", name, got)
		}
		if unescape(got) != name {
			t.Errorf("unescape(escape(%q)) = %q", name, unescape(got))
		}
	})
}
