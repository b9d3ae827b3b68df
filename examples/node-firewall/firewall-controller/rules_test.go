package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestRulesAreReadByTheirNetwork(t *testing.T) {
	all, err := parse("1 10.1.2.3/8 udp 4242 deny\n\n2 10.0.0.0/8 tcp 80-90 allow\n3 2001:db8::/32 any any deny\n")
	if err != nil {
		t.Fatal(err)
	}
	four, six := network{PrefixLen: 104, IP: [16]byte{10: 0xff, 11: 0xff, 12: 10}}, network{PrefixLen: 32, IP: [16]byte{0x20, 0x01, 0x0d, 0xb8}}
	want := map[network]rules{
		four: {Rules: [maxRules]rule{
			{ID: 1, FirstPort: 4242, LastPort: 4242, Protocol: 17, Action: 1}, {ID: 2, FirstPort: 80, LastPort: 90, Protocol: 6, Action: 2},
		}},
		six: {Rules: [maxRules]rule{{ID: 3, Action: 1}}},
	}
	if fmt.Sprint(all) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", all, want)
	}
}

func TestARuleThatCannotBeReadIsNamed(t *testing.T) {
	for what, c := range map[string]struct{ rule, want string }{
		"a word too few":          {"1 10.0.0.0/8 udp deny", "it has 4 words"},
		"no id":                   {"0 10.0.0.0/8 udp 1 deny", `its id is "0"`},
		"an id beyond":            {"1024 10.0.0.0/8 udp 1 deny", `its id is "1024"`},
		"an address":              {"1 10.0.0.1 udp 1 deny", "no '/'"},
		"another protocol":        {"1 10.0.0.0/8 sctp 1 deny", `its protocol is "sctp"`},
		"ports backwards":         {"1 10.0.0.0/8 udp 9-1 deny", `its ports are "9-1"`},
		"another action":          {"1 10.0.0.0/8 udp 1 reject", `its action is "reject"`},
		"more than a network has": {strings.Repeat("1 10.0.0.0/8 udp 1 deny\n", maxRules+1), "has 16 already"},
	} {
		if _, err := parse(c.rule); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
