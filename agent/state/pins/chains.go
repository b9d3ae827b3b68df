package pins

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/text"
)

// The names in a chain's directory.
const (
	chainLink    = "link"
	chainProgram = "prog"
	chainRuns    = "runs"
	memberPrefix = "member-"
)

// Chain is the XDP link of one interface, held open, with the program it runs.
type Chain struct {
	Device plan.Device
	// Target is the interface by the name that it had when the link was made; it has none where an
	// earlier version of Skep made it.
	Target plan.Target
	// Mode is how the interface runs the chain, as far as that is known, and Fallback why the
	// driver does not, where it was tried.
	Mode     v1alpha1.XDPMode
	Fallback string
	Link     Held
	Version  *ChainVersion
	// Former are the members of versions that the link does not run any more, and
	// whose pins are not removed yet.
	Former []plan.Member
}

// ChainVersion is one program that an interface's link runs or is to run.
type ChainVersion struct {
	Members []plan.Member
	Program *ebpf.Program
	// Counters count the runs of each member; nil where there is one member,
	// which is attached as it is.
	Counters *ebpf.Map
	// off are the members that were switched off when that was read, by their places.
	off []bool
	// id is that of Program, once it was asked for.
	id ebpf.ProgramID
}

// ProgramID is the kernel's id of the version's program, which it is asked for once.
func (v *ChainVersion) ProgramID() (id ebpf.ProgramID, err error) {
	if v.id == 0 {
		v.id, err = ProgramID(v.Program)
	}
	return v.id, err
}

// ReadSwitches reads which members are switched off.
func (v *ChainVersion) ReadSwitches() error {
	if v.Counters == nil {
		return nil
	}
	off, err := chain.ReadSwitches(v.Counters, len(v.Members))
	if err == nil {
		v.off = off
	}
	return err
}

// Switch has the version run without the members that are off, and with all others, from the next packet on; see
// chain.Switch. isOff gets whether the member is off now. One member alone has no switch: it is detached.
func (v *ChainVersion) Switch(isOff func(m plan.Member, now bool) bool) error {
	if _, changes := v.switched(isOff); !changes || v.Counters == nil {
		return nil
	}
	// The kernel's state counts: no member is switched on by mistake.
	if err := v.ReadSwitches(); err != nil {
		return err
	}
	off, changes := v.switched(isOff)
	if !changes {
		return nil
	}
	if err := chain.Switch(v.Counters, off); err != nil {
		return err
	}
	v.off = off
	return nil
}

// switched returns which members are off after a Switch, by their places, and whether any changes.
func (v *ChainVersion) switched(isOff func(m plan.Member, now bool) bool) (off []bool, changes bool) {
	off = make([]bool, len(v.Members))
	for i, m := range v.Members {
		now := i < len(v.off) && v.off[i]
		off[i] = isOff(m, now)
		changes = changes || off[i] != now
	}
	return off, changes
}

// Off are the members that are switched off, as that was read or written last.
func (v *ChainVersion) Off() []plan.Member {
	var off []plan.Member
	for i, is := range v.off {
		if is {
			off = append(off, v.Members[i])
		}
	}
	return off
}

// IsOff reports whether a member is switched off, as Off has it.
func (v *ChainVersion) IsOff(m plan.Member) bool { return slices.Contains(v.Off(), m) }

// Close lets the version go.
func (v *ChainVersion) Close() error {
	errs := []error{v.Program.Close()}
	if v.Counters != nil {
		errs = append(errs, v.Counters.Close())
	}
	return errors.Join(errs...)
}

// Close lets the chain go; what is pinned stays.
func (c *Chain) Close() error {
	var errs []error
	if c.Version != nil {
		errs = append(errs, c.Version.Close())
	}
	if c.Link != nil {
		errs = append(errs, c.Link.Close())
	}
	return errors.Join(errs...)
}

// ChainPath is the pin of the interface's link.
func (s *Store) ChainPath(d plan.Device) string { return filepath.Join(s.chainDir(d), chainLink) }

// ChainDevices lists the devices that have a chain pinned.
func (s *Store) ChainDevices() ([]plan.Device, error) {
	found, err := list(filepath.Join(s.root, chainsDir), inChains)
	if err != nil {
		return nil, err
	}
	var devices []plan.Device
	for _, n := range found {
		if d, ok := plan.ParseDevice(n); ok {
			devices = append(devices, d)
		}
	}
	slices.SortFunc(devices, plan.Device.Compare)
	return devices, nil
}

// PinChainVersion pins a program with the names of its members, all at once,
// so that it is known again after the link runs it.
func (s *Store) PinChainVersion(d plan.Device, v *ChainVersion) error {
	dir, id := s.chainDir(d), versionID(v.Members)
	aside, path := filepath.Join(dir, newPrefix+id), filepath.Join(dir, id)
	if v.pinnedIn(path) {
		return nil
	}
	if err := clearDir(aside, inVersion); err != nil {
		return err
	}
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	if err := v.pin(aside); err != nil {
		return err
	}
	// What lacks something, or is another program of the same members, goes last: a
	// kill meanwhile leaves a link whose program is not known.
	if err := clearDir(path, inVersion); err != nil {
		return err
	}
	if err := takePlace(aside, path, inVersion, v.pin); err != nil {
		return fmt.Errorf("pin chain: %w", err)
	}
	return nil
}

// pinnedIn reports whether all of the version is pinned in a directory.
func (v *ChainVersion) pinnedIn(dir string) bool {
	pinned, id, err := openVersion(dir)
	if err != nil || pinned == nil {
		return false
	}
	own, err := v.ProgramID()
	same := err == nil && id == own && slices.Equal(pinned.Members, v.Members) && (pinned.Counters == nil) == (v.Counters == nil)
	return pinned.Close() == nil && same
}

// pin pins the version into an empty directory.
func (v *ChainVersion) pin(dir string) error {
	for i, m := range v.Members {
		text, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("describe member: %w", err)
		}
		if err := os.Symlink(string(text), filepath.Join(dir, fmt.Sprintf("%s%03d", memberPrefix, i))); err != nil {
			return fmt.Errorf("describe member %s: %w", m.Program, err)
		}
	}
	if err := pinProgram(v.Program, filepath.Join(dir, chainProgram)); err != nil {
		return fmt.Errorf("pin chain: %w", err)
	}
	if v.Counters != nil {
		if err := pinMap(v.Counters, filepath.Join(dir, chainRuns)); err != nil {
			return fmt.Errorf("pin chain's counters: %w", err)
		}
	}
	return nil
}

// PinChainLink pins the new link of an interface, in the place of an old one, and notes which
// interface it is, and why its driver does not run the link: the kernel tells neither its network
// namespace nor that.
func (s *Store) PinChainLink(on plan.Target, fallback string, l Held) error {
	if err := s.describeChain(on, fallback); err != nil {
		return err
	}
	path := s.ChainPath(on.Device())
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove severed link's pin: %w", err)
	}
	if err := plain.Error(l.Pin(path)); err != nil {
		return fmt.Errorf("pin chain's link: %w", err)
	}
	return nil
}

// chainText is what the text beside the pin of a chain's link says.
type chainText struct {
	plan.Target
	Fallback string `json:"fallback,omitempty"`
}

// maxFallback is how much is kept of a Chain's Fallback, in bytes.
const maxFallback = 512

// describeChain notes beside a link's pin what the kernel does not tell of it.
func (s *Store) describeChain(on plan.Target, fallback string) error {
	body, err := json.Marshal(chainText{on, text.Cut(text.Line(fallback), maxFallback)})
	if err == nil {
		err = replaceSymlink(string(body), s.ChainPath(on.Device())+textSuffix)
	}
	if err != nil {
		return fmt.Errorf("describe chain's link: %w", err)
	}
	return nil
}

// RepinChain makes again what someone removed of a chain's pins, and tells
// whether anything was missing.
func (s *Store) RepinChain(c *Chain) (bool, error) {
	dir := s.chainDir(c.Device)
	healed := false
	if id := filepath.Join(dir, versionID(c.Version.Members)); missing(filepath.Join(id, chainProgram)) ||
		c.Version.Counters != nil && missing(filepath.Join(id, chainRuns)) {
		if err := s.PinChainVersion(c.Device, c.Version); err != nil {
			return false, err
		}
		healed = true
	}
	path := s.ChainPath(c.Device)
	if c.Target.Ifindex != 0 && missing(path+textSuffix) {
		if err := s.describeChain(c.Target, c.Fallback); err != nil {
			return healed, err
		}
		healed = true
	}
	if missing(path) {
		if err := plain.Error(errors.Join(c.Link.Unpin(), c.Link.Pin(path))); err != nil {
			return healed, fmt.Errorf("pin chain's link again: %w", err)
		}
		healed = true
	}
	return healed, nil
}

// OpenChain opens an interface's link and the version it runs, which is the
// one with the program id the link tells. The version is nil where no pinned
// program is the link's; there is no chain where there is no link. Pins that
// cannot be read are left out and returned as strays.
func (s *Store) OpenChain(d plan.Device) (*Chain, []Stray, error) {
	if missing(s.ChainPath(d)) {
		return nil, nil, s.RemoveChain(&Chain{Device: d})
	}
	l, facts, err := loadLink(s.ChainPath(d))
	if err != nil {
		stray, err := unreadable("", s.ChainPath(d), err)
		return nil, []Stray{stray}, err
	}
	c := &Chain{Device: d, Link: l}
	if noted, ok := readChainText(s.ChainPath(d)); ok {
		c.Target, c.Fallback = noted.Target, text.Cut(text.Line(noted.Fallback), maxFallback)
	}
	ids, err := list(s.chainDir(d), inChain)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	var strays []Stray
	for _, id := range ids {
		if !isHash(id) {
			continue
		}
		dir := filepath.Join(s.chainDir(d), id)
		err := c.adopt(dir, facts.Program)
		if err == nil {
			continue
		}
		stray, err := unreadable("", dir, err)
		if err != nil {
			return nil, nil, errors.Join(err, c.Close())
		}
		strays = append(strays, stray)
	}
	return c, strays, nil
}

// ReadChainText reads of which interface PinChainLink pinned a link. It is not ok where nothing is
// noted, or where it is another's.
func ReadChainText(path string) (on plan.Target, ok bool) {
	noted, ok := readChainText(path)
	return noted.Target, ok
}

func readChainText(path string) (noted chainText, ok bool) {
	body, err := os.Readlink(path + textSuffix)
	if err != nil || json.Unmarshal([]byte(body), &noted) != nil || noted.Device().String() != filepath.Base(filepath.Dir(path)) {
		return chainText{}, false
	}
	return noted, true
}

// adopt opens one directory of a chain, and keeps the version where the link
// runs its program.
func (c *Chain) adopt(dir string, runs ebpf.ProgramID) error {
	v, program, err := openVersion(dir)
	switch {
	case err != nil || v == nil:
		return err
	case program == runs && c.Version == nil:
		c.Version = v
		return nil
	}
	c.Former = append(c.Former, v.Members...)
	return v.Close()
}

// openVersion opens one directory of a chain, and its program's id. A
// directory that lacks its program, or whose members cannot be read, gives no
// version.
func openVersion(dir string) (*ChainVersion, ebpf.ProgramID, error) {
	v := &ChainVersion{}
	found, err := list(dir, inVersion)
	if err != nil {
		return nil, 0, err
	}
	slices.Sort(found)
	for _, n := range found {
		if !strings.HasPrefix(n, memberPrefix) {
			continue
		}
		text, err := os.Readlink(filepath.Join(dir, n))
		if err != nil {
			return nil, 0, fmt.Errorf("read chain's member: %w", err)
		}
		m, readable := readMember(text)
		if !readable {
			return nil, 0, nil
		}
		v.Members = append(v.Members, m)
	}
	if missing(filepath.Join(dir, chainProgram)) {
		return nil, 0, nil
	}
	if v.Program, err = plain.Of(ebpf.LoadPinnedProgram(filepath.Join(dir, chainProgram), nil)); err != nil {
		return nil, 0, fmt.Errorf("open pinned chain: %w", err)
	}
	if path := filepath.Join(dir, chainRuns); !missing(path) {
		if v.Counters, err = plain.Of(ebpf.LoadPinnedMap(path, nil)); err != nil {
			return nil, 0, errors.Join(fmt.Errorf("open chain's counters: %w", err), v.Close())
		}
	}
	id, err := v.ProgramID()
	if err != nil {
		return nil, 0, errors.Join(err, v.Close())
	}
	return v, id, nil
}

// readMember reads the text of one member.
func readMember(text string) (m plan.Member, ok bool) {
	err := json.Unmarshal([]byte(text), &m)
	return m, err == nil
}

// DropChainVersions removes the pins of all versions but the one that runs.
func (s *Store) DropChainVersions(c *Chain) error {
	found, err := list(s.chainDir(c.Device), inChain)
	if err != nil {
		return err
	}
	for _, n := range found {
		if n == chainLink || n == chainLink+textSuffix || c.Version != nil && n == versionID(c.Version.Members) {
			continue
		}
		if err := remove(filepath.Join(s.chainDir(c.Device), n), inChain); err != nil {
			return fmt.Errorf("drop chain's old program: %w", err)
		}
	}
	return nil
}

// RemoveChain unpins an interface's link and programs and closes the link, which
// detaches; the caller closes the version. Where a pin cannot be removed, the chain stays open, so that the
// removal can be tried again.
func (s *Store) RemoveChain(c *Chain) error {
	if c.Link != nil {
		Sever(c.Link)
	}
	// The link goes first: the kernel must not run what has no name.
	if err := remove(s.ChainPath(c.Device), inChain); err != nil {
		return fmt.Errorf("remove chain: %w", err)
	}
	// The last chain takes the directory of all with it.
	if err := errors.Join(clearDir(s.chainDir(c.Device), inChain), rmdir(filepath.Join(s.root, chainsDir))); err != nil {
		return fmt.Errorf("remove chain: %w", err)
	}
	if c.Link == nil {
		return nil
	}
	return c.Link.Close()
}

// versionID names a list of members.
func versionID(members []plan.Member) string {
	body, err := json.Marshal(members)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:16])
}
