package build

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/program/jit"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/program/relocate"
	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/plan/order"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/intent"
)

// MemberError is the error of a chain that cannot be made because one member's object, intent or
// program cannot be had.
type MemberError struct {
	UID string
	Err error
}

// Error implements error.
func (e *MemberError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *MemberError) Unwrap() error { return e.Err }

// ChainError is why a chain could not be made. Its words are of all its members.
type ChainError struct {
	// Members are the applications by the keys of their programs.
	Members map[string]v1alpha1.Identity
	Err     error
}

// Error implements error.
func (e *ChainError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ChainError) Unwrap() error { return e.Err }

// IsOf reports whether all members are of one namespace.
func (e *ChainError) IsOf(namespace string) bool {
	for _, id := range e.Members {
		if id.Namespace != namespace {
			return false
		}
	}
	return true
}

// Explain returns the error of a chain of these parts as a *ChainError.
func Explain(parts []Part, err error) error {
	of := &ChainError{Members: make(map[string]v1alpha1.Identity, len(parts)), Err: err}
	for _, part := range parts {
		of.Members[part.Key] = part.Member.Identity
	}
	return of
}

// Chain links a chain for the kernel that runs and loads it. It runs beside the loop. It fails with a *ChainError.
func Chain(parts []Part, files *objects.Cache, o chain.Options, shared SharedMaps, turn Turn) (*pins.ChainVersion, error) {
	v, err := loadChain(parts, files, o, shared, turn)
	if err != nil {
		return nil, Explain(parts, err)
	}
	return v, nil
}

func loadChain(parts []Part, files *objects.Cache, o chain.Options, shared SharedMaps, turn Turn) (*pins.ChainVersion, error) {
	linked, err := link(parts, files, o, again(turn.Types))
	if err != nil {
		return nil, err
	}
	if relocate.HasPending(linked.Program.Instructions) {
		return nil, errors.New("load chain: its programs were not prepared for a kernel")
	}
	if err := turn.admit(jit.WorkOf(ebpf.XDP, linked.Program.Instructions).Cost()); err != nil {
		return nil, err
	}
	loaded, err := chain.Load(linked, shared.open, ebpf.ProgramOptions{})
	if err != nil {
		return nil, rights.ExplainLoad(err, rights.ToLoad(ebpf.XDP))
	}
	var members []plan.Member
	for _, part := range parts {
		members = append(members, part.Member)
	}
	return &pins.ChainVersion{Members: members, Program: loaded.Program, Counters: loaded.Counters}, nil
}

// Part is one member of a chain with all that linking needs of it but for its
// object.
type Part struct {
	// Key names the member for people; see MemberKeys.
	Key    string
	Member plan.Member
	Intent intent.Opened
	// IsNew: it is blamed where the chain does not fit.
	IsNew bool
	// Joins: the running chain does not have it.
	Joins bool
}

// Link makes one program of the members. It touches no kernel.
func Link(parts []Part, files *objects.Cache, o chain.Options) (*chain.Linked, error) {
	return link(parts, files, o, loader.Prepare)
}

func link(parts []Part, files *objects.Cache, o chain.Options, prepare prepare) (*chain.Linked, error) {
	var members []chain.Member
	read := map[string]*memberObject{}
	for _, part := range parts {
		m := part.Member
		key := Key(m.UID, m.Revision)
		if read[key] == nil {
			one, err := readMember(part.Intent, files, prepare)
			if err != nil {
				return nil, &MemberError{m.UID, err}
			}
			read[key] = one
		}
		one, err := read[key].member(m)
		if err != nil {
			return nil, &MemberError{m.UID, err}
		}
		one.Key, one.New, one.Joins = part.Key, part.IsNew, part.Joins
		members = append(members, one)
	}
	return chain.Link(members, o)
}

// Unaware returns the members whose programs take no packets of several buffers (SEC("xdp.frags")).
func Unaware(parts []Part, files *objects.Cache) ([]plan.Member, error) {
	return unaware(parts, files, loader.Prepare)
}

// unaware prepares each revision once: an application has many members.
func unaware(parts []Part, files *objects.Cache, prepare prepare) ([]plan.Member, error) {
	var unaware []plan.Member
	specs := map[string]*ebpf.CollectionSpec{}
	for _, part := range parts {
		key := Key(part.Member.UID, part.Member.Revision)
		if specs[key] == nil {
			_, prepared, err := read(part.Intent, files, prepare)
			if err != nil {
				return nil, err
			}
			specs[key] = prepared.Spec
		}
		program := specs[key].Programs[plan.Instance(part.Member.Program, plan.XDP, "")]
		if program != nil && !chain.TakesFrags(program) {
			unaware = append(unaware, part.Member)
		}
	}
	return unaware, nil
}

// memberObject is the object of a revision with what is known of it. All members of
// the revision share it.
type memberObject struct {
	spec  *ebpf.CollectionSpec
	facts bytecode.Facts
}

// readMember reads the object of an intent whose programs are members of a chain.
func readMember(o intent.Opened, files *objects.Cache, prepare prepare) (*memberObject, error) {
	object, prepared, err := read(o, files, prepare)
	if err != nil {
		return nil, err
	}
	facts, err := bytecode.Inspect(bytes.NewReader(object), bytecode.Options{})
	if err != nil {
		return nil, fmt.Errorf("inspect object of %s: %w", o.Payload().Application, err)
	}
	return &memberObject{prepared.Spec, facts}, nil
}

// member is one program of the object as package chain takes it.
func (o *memberObject) member(m plan.Member) (chain.Member, error) {
	program, ok := o.facts.Program(m.Program)
	if !ok {
		return chain.Member{}, fmt.Errorf("link chain: the object of %s has no program %s", m.Identity, m.Program)
	}
	return chain.Member{
		Application: Key(m.UID, m.Revision), Object: o.spec, Program: plan.Instance(m.Program, plan.XDP, ""), Facts: program,
		ProceedOn: m.ProceedOn, Tenant: m.Identity.Namespace, Final: m.Rank() == order.AfterNamespaces,
	}, nil
}

// Key names a revision of an application.
func Key(uid, revision string) string { return uid + "@" + revision }

// MemberKeys names the members for people. Two applications of one name, one
// of them about to go, are told apart by their uids.
func MemberKeys(members []plan.Member) []string {
	seen := map[string]int{}
	for _, m := range members {
		seen[m.Identity.String()+" "+m.Program]++
	}
	var keys []string
	for _, m := range members {
		key := m.Identity.String() + " " + m.Program
		if seen[key] > 1 {
			key += " (" + m.UID + ")"
		}
		keys = append(keys, key)
	}
	return keys
}

// SharedMaps are the maps of the members' revisions, held open apart from the
// agent's, by Key.
type SharedMaps map[string]*loader.Revision

// Share opens the maps of the members' revisions once more, for a load that
// runs beside the loop.
func Share(revisions map[string]map[string]*loader.Revision, members []plan.Member) (SharedMaps, error) {
	shared := SharedMaps{}
	for _, m := range members {
		key := Key(m.UID, m.Revision)
		if shared[key] != nil {
			continue
		}
		r, err := revisions[m.UID][m.Revision].Share()
		if err != nil {
			shared.Close()
			return nil, fmt.Errorf("load chain: %w", err)
		}
		if r == nil {
			shared.Close()
			return nil, &MemberError{m.UID, fmt.Errorf("load chain: revision %s of %s is not in the kernel", m.Revision, m.Identity)}
		}
		shared[key] = r
	}
	return shared, nil
}

// Close closes the maps.
func (s SharedMaps) Close() {
	for _, r := range s {
		_ = r.Close()
	}
}

// open finds the map of a member's revision.
func (s SharedMaps) open(ref chain.MapRef) (*ebpf.Map, error) {
	if r := s[ref.Application]; r != nil && r.Maps[ref.Name] != nil {
		return r.Maps[ref.Name], nil
	}
	return nil, errors.New("revision " + ref.Application + " has no map " + ref.Name + " pinned")
}
