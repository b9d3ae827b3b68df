package functions

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// traceable is a list as ftrace has it. do_twice is the name of two functions.
const traceable = `tcp_connect
tcp_close
tcp_v6_connect [ipv6]
__ftrace_invalid_address___64
do_twice
do_twice
udp_sendmsg
tcp_ack.isra.0
bpf_lsm_file_open
nf_conntrack_in [nf_conntrack]
nf_confirm [nf_conntrack]
`

// symbols is a list as proc(5) has it.
const symbols = `0000000000000000 A fixed_percpu_data
0000000000000000 T tcp_connect
0000000000000000 t do_twice
0000000000000000 t do_twice
0000000000000000 T noinstr_function
0000000000000000 d tcp_data
0000000000000000 t bpf_prog_6deef7357e7b4530_count	[bpf]
0000000000000000 t nf_confirm	[nf_conntrack]
`

// kernel is one whose lists are files. Without a list of ftrace there are symbols.
func kernel(t *testing.T, ftrace string) *Kernel {
	t.Helper()
	k := New()
	k.root = t.TempDir()
	write(t, k, "/proc/kallsyms", symbols)
	write(t, k, "/proc/modules", "nf_conntrack 172032 1 - Live 0x0\n")
	if ftrace != "" {
		write(t, k, "/sys/kernel/tracing/available_filter_functions", ftrace)
	}
	return k
}

func write(t *testing.T, k *Kernel, name, body string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(k.root+name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(k.root+name, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFunctionsAreChosen(t *testing.T) {
	two := int32(2)
	for sentence, c := range map[string]struct {
		ftrace string
		f      v1alpha1.Functions
		want   []string
		err    string
	}{
		"by name, unseen":      {traceable, v1alpha1.Functions{Names: []string{"b", "a", "b"}}, []string{"a", "b"}, ""},
		"by a glob":            {traceable, v1alpha1.Functions{Names: []string{"tcp_c*"}}, []string{"tcp_close", "tcp_connect"}, ""},
		"by a name and a glob": {traceable, v1alpha1.Functions{Names: []string{"udp_sendmsg", "tcp_co*"}}, []string{"tcp_connect", "udp_sendmsg"}, ""},
		"but for some": {
			traceable, v1alpha1.Functions{Names: []string{"tcp_*"}, Exclude: []string{"tcp_v6_*", "*.isra.*"}}, []string{"tcp_close", "tcp_connect"}, "",
		},
		"of a module": {
			traceable, v1alpha1.Functions{Names: []string{"*"}, Module: "nf_conntrack"}, []string{"nf_confirm", "nf_conntrack_in"}, "",
		},
		"not those that share a name": {traceable, v1alpha1.Functions{Names: []string{"do_*"}}, nil, "no function do_*"},
		"not what is no function":     {traceable, v1alpha1.Functions{Names: []string{"__ftrace*"}}, nil, "no function __ftrace*"},
		"by a name of another module": {
			traceable, v1alpha1.Functions{Names: []string{"tcp_connect"}, Module: "nf_conntrack"}, nil, "no function tcp_connect",
		},
		"of the symbols without ftrace": {"", v1alpha1.Functions{Names: []string{"*"}}, []string{"nf_confirm", "noinstr_function", "tcp_connect"}, ""},
		"within the limit":              {traceable, v1alpha1.Functions{Names: []string{"tcp_c*"}, Limit: &two}, []string{"tcp_close", "tcp_connect"}, ""},
		"not beyond the limit": {
			traceable, v1alpha1.Functions{Names: []string{"tcp_*"}, Limit: &two}, nil, "4 functions of this kernel are chosen, and the limit is 2",
		},
		"not if all are excluded":             {traceable, v1alpha1.Functions{Names: []string{"tcp_conn*"}, Exclude: []string{"tcp_*"}}, nil, "exclude fewer"},
		"not by a broken pattern":             {traceable, v1alpha1.Functions{Names: []string{"tcp_["}}, nil, `"tcp_[" is not a pattern`},
		"not by nothing":                      {traceable, v1alpha1.Functions{}, nil, "list functions.names"},
		"not by an empty name beside another": {traceable, v1alpha1.Functions{Names: []string{"", "tcp_*"}}, nil, `"" is not a pattern`},
	} {
		t.Run(sentence, func(t *testing.T) {
			got, err := kernel(t, c.ftrace).Choose(&c.f)
			if diff := cmp.Diff(c.want, got.Names); diff != "" {
				t.Errorf("names (-want +got): %s", diff)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("Choose = %v, want %q", err, c.err)
			}
		})
	}
}

func TestAChoiceIsKeptUntilModulesChange(t *testing.T) {
	k, f := kernel(t, traceable), &v1alpha1.Functions{Names: []string{"nf_*"}}
	choose := func() Choice {
		t.Helper()
		c, err := k.Choose(f)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(k.Names(c.ID), c.Names) {
			t.Errorf("Names of %s = %v, want %v", c.ID, k.Names(c.ID), c.Names)
		}
		return c
	}
	before := choose()
	write(t, k, "/sys/kernel/tracing/available_filter_functions", traceable+"nf_nat_setup_info [nf_nat]\n")
	k.Sweep()
	if same := choose(); len(same.Names) != len(before.Names) {
		t.Error("the list was read again although no module was loaded")
	}
	write(t, k, "/proc/modules", "nf_nat 61440 0 - Live 0x0\nnf_conntrack 172032 2 - Live 0x0\n")
	k.Sweep()
	after := choose()
	if after.ID == before.ID || len(after.Names) != len(before.Names)+1 {
		t.Errorf("a module was loaded, and the choice is %+v after %+v", after, before)
	}
	k.Sweep()
	if k.Names(after.ID) == nil {
		t.Error("Sweep forgot what was sought")
	}
	for range 2 {
		if _, err := k.Choose(&v1alpha1.Functions{Names: []string{"udp_sendmsg"}}); err != nil {
			t.Fatal(err)
		}
		k.Sweep()
	}
	if k.Names(after.ID) != nil {
		t.Error("Sweep remembers what nobody sought")
	}
}

func TestARoundLooksForABoundedTime(t *testing.T) {
	k, known, other := kernel(t, traceable), &v1alpha1.Functions{Names: []string{"tcp_c*"}}, &v1alpha1.Functions{Names: []string{"nf_*"}}
	none := &v1alpha1.Functions{Names: []string{"none_*"}}
	if _, err := k.Choose(known); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Choose(none); !errors.As(err, new(*MissingError)) {
		t.Fatalf("Choose = %v", err)
	}
	k.spent = 2 * roundGrace
	if _, err := k.Choose(known); err != nil {
		t.Errorf("what is known: Choose = %v", err)
	}
	if _, err := k.Choose(none); !errors.As(err, new(*MissingError)) {
		t.Errorf("what is known to be missing: Choose = %v", err)
	}
	if _, err := k.Choose(other); !errors.Is(err, ErrLater) {
		t.Errorf("what is not known: Choose = %v", err)
	}
	if err := k.Explain("", "tcp_connet"); err != nil {
		t.Errorf("Explain = %v, although the round has looked for long enough", err)
	}
	k.Sweep()
	if _, err := k.Choose(other); err != nil {
		t.Errorf("in the next round: Choose = %v", err)
	}
}

func TestAMissingFunctionIsExplained(t *testing.T) {
	for sentence, c := range map[string]struct {
		prefix, name string
		want         *MissingError
	}{
		"misspelled":                {"", "tcp_connet", &MissingError{Name: "tcp_connet", Near: "; near it are tcp_connect"}},
		"renamed by the compiler":   {"", "tcp_ack", &MissingError{Name: "tcp_ack", Near: "; near it are tcp_ack.isra.0"}},
		"inlined":                   {"", "inlined_function", &MissingError{Name: "inlined_function"}},
		"not to be traced":          {"", "noinstr_function", &MissingError{Name: "noinstr_function", Untraceable: true}},
		"one of two":                {"", "do_twice", &MissingError{Name: "do_twice", Untraceable: true}},
		"an LSM hook":               {"bpf_lsm_", "file_opn", &MissingError{Name: "file_opn", Near: "; near it are file_open"}},
		"there, without its prefix": {"bpf_lsm_", "file_open", nil},
	} {
		t.Run(sentence, func(t *testing.T) {
			err := kernel(t, traceable).Explain(c.prefix, c.name)
			var got *MissingError
			errors.As(err, &got)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("Explain (-want +got): %s", diff)
			}
		})
	}
}

// FuzzLists reads lists as no kernel writes them.
func FuzzLists(f *testing.F) {
	f.Add(traceable)
	f.Add(symbols)
	f.Fuzz(func(t *testing.T, text string) {
		for line := range strings.Lines(text) {
			if one, ok := parseSymbol(line); ok && one.name == "" {
				t.Errorf("%q is a function without a name", line)
			}
			parseTraceable(line)
		}
	})
}
