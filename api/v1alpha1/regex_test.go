package v1alpha1

import (
	"strings"
	"testing"
)

func TestARegexMatchesWholeNames(t *testing.T) {
	for regex, c := range map[string]struct{ matches, not []string }{
		`eth[0-9]+`:      {[]string{"eth0", "eth12"}, []string{"eth", "veth0", "eth0.100", "eth0\n"}},
		`eth0|en[po].+`:  {[]string{"eth0", "enp1s0", "eno1"}, []string{"eth01", "xeth0", "en0"}},
		`\Qeth.\E.*`:     {[]string{"eth.0"}, []string{"eth0"}},
		`^(?i)WAN$`:      {[]string{"wan", "WAN"}, []string{"wan0"}},
		`(?:eth|wan)\d$`: {[]string{"wan1"}, []string{"wan11"}},
	} {
		e, err := (&Interfaces{Regex: regex}).Expression()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range c.matches {
			if !e.MatchString(name) {
				t.Errorf("%s does not match %q", regex, name)
			}
		}
		for _, name := range c.not {
			if e.MatchString(name) {
				t.Errorf("%s matches %q", regex, name)
			}
		}
	}
}

func TestAWrongRegexIsToldWithItsPlace(t *testing.T) {
	for regex, says := range map[string]string{
		`é[a-`:                    "character 2: error parsing regexp: missing closing ]",
		`eth(0`:                   "missing closing )",
		`eth0)|(.*`:               "unexpected )",
		`eth(?=0)`:                "character 4: error parsing regexp: invalid or unsupported Perl syntax",
		`(a)\1`:                   `character 4: error parsing regexp: invalid escape sequence`,
		strings.Repeat("é", 257):  "it has 257 characters, and at most 256 are taken",
		`eth\Q`:                   `read regex "eth\\Q": \Q is not closed`,
		`\Qe(`:                    `\Q is not closed: write \E behind`,
		`((a{100}){100}){100}`:    "character 4: error parsing regexp: invalid repeat count",
		`eth` + "\xff" + `[0-9]+`: "invalid UTF-8",
	} {
		if _, err := (&Interfaces{Regex: regex}).Expression(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q in it", regex, err, says)
		}
	}
	if e, err := (&Interfaces{Regex: strings.Repeat("é", 256)}).Expression(); e == nil || err != nil {
		t.Errorf("a regex of 256 characters: %v", err)
	}
	if e, err := new(Interfaces).Expression(); e != nil || err != nil {
		t.Errorf("no regex: %v, %v", e, err)
	}
}
