package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// maxRules is how many a network may have.
const maxRules = 16

// The types of node_firewall.bpf.c. Their layout is compared with the BTF of the maps.
type (
	network struct {
		PrefixLen uint32
		IP        [16]byte
	}
	rule struct {
		ID                  uint32
		FirstPort, LastPort uint16
		Protocol, Action    uint8
		Padding             [2]byte
	}
	rules  struct{ Rules [maxRules]rule }
	counts struct{ Packets, Bytes uint64 }

	statistics struct{ Allow, Deny counts }
)

// parse reads the rules of a file, by their network.
func parse(body string) (map[network]rules, error) {
	all, next := map[network]rules{}, map[network]int{}
	for line := range strings.Lines(body) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		of, r, err := parseRule(fields)
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", strings.TrimSpace(line), err)
		}
		if next[of] == maxRules {
			return nil, fmt.Errorf("rule %q: its network has %d already", strings.TrimSpace(line), maxRules)
		}
		value := all[of]
		value.Rules[next[of]] = r
		all[of] = value
		next[of]++
	}
	return all, nil
}

// parseRule reads a rule: its id, the senders, the protocol, the ports and the action.
func parseRule(fields []string) (of network, r rule, err error) {
	if len(fields) != 5 {
		return of, r, fmt.Errorf("it has %d words; write ID NETWORK PROTOCOL PORTS ACTION", len(fields))
	}
	id, err := strconv.ParseUint(fields[0], 10, 10)
	if err != nil || id == 0 {
		return of, r, fmt.Errorf("its id is %q; give a number from 1 to 1023", fields[0])
	}
	prefix, err := netip.ParsePrefix(fields[1])
	if err != nil {
		return of, r, err
	}
	of = network{PrefixLen: uint32(prefix.Bits()), IP: prefix.Masked().Addr().As16()}
	if prefix.Addr().Is4() {
		of.PrefixLen += 96
	}
	protocol, known := map[string]uint8{"any": 0, "icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58}[fields[2]]
	if !known {
		return of, r, fmt.Errorf("its protocol is %q; write any, icmp, icmpv6, tcp or udp", fields[2])
	}
	action, known := map[string]uint8{"deny": 1, "allow": 2}[fields[4]]
	if !known {
		return of, r, fmt.Errorf("its action is %q; write allow or deny", fields[4])
	}
	r = rule{ID: uint32(id), Protocol: protocol, Action: action}
	r.FirstPort, r.LastPort, err = parsePorts(fields[3])
	return of, r, err
}

// parsePorts reads a port, or the first and the last of some, or any.
func parsePorts(word string) (first, last uint16, err error) {
	if word == "any" {
		return 0, 0, nil
	}
	from, to, many := strings.Cut(word, "-")
	if !many {
		to = from
	}
	a, err := strconv.ParseUint(from, 10, 16)
	if err != nil {
		return 0, 0, err
	}
	b, err := strconv.ParseUint(to, 10, 16)
	if err == nil && (a == 0 || a > b) {
		err = fmt.Errorf("its ports are %q; write 1 to 65535, the smaller one first", word)
	}
	return uint16(a), uint16(b), err
}
