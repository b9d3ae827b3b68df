package kernel

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
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/plan"
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
	Ifindex int
	Link    link.Link
	Version *ChainVersion
}

// ChainVersion is one program that an interface's link runs or is to run.
type ChainVersion struct {
	Members []plan.Member
	Program *ebpf.Program
	// Counters count the runs of each member; nil where there is one member,
	// which is attached as it is.
	Counters *ebpf.Map
}

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
func (s *Store) ChainPath(ifindex int) string { return filepath.Join(s.chainDir(ifindex), chainLink) }

// ChainDevices lists the interface indexes that have a chain pinned.
func (s *Store) ChainDevices() ([]int, error) {
	found, err := list(filepath.Join(s.root, chainsDir))
	if err != nil {
		return nil, err
	}
	var indexes []int
	for _, n := range found {
		if i, err := strconv.Atoi(n); err == nil {
			indexes = append(indexes, i)
		}
	}
	slices.Sort(indexes)
	return indexes, nil
}

// PinChainVersion pins a program with the names of its members, all at once,
// so that it is known again after the link runs it.
func (s *Store) PinChainVersion(ifindex int, v *ChainVersion) error {
	dir, id := s.chainDir(ifindex), versionID(v.Members)
	aside, place := filepath.Join(dir, newPrefix+id), filepath.Join(dir, id)
	if err := errors.Join(os.RemoveAll(aside), os.RemoveAll(place)); err != nil {
		return fmt.Errorf("remove leftover pin: %w", err)
	}
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	for i, m := range v.Members {
		text, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("describe member: %w", err)
		}
		if err := os.Symlink(string(text), filepath.Join(aside, fmt.Sprintf("%s%03d", memberPrefix, i))); err != nil {
			return fmt.Errorf("describe member %s: %w", m.Program, err)
		}
	}
	if err := pinProgram(v.Program, filepath.Join(aside, chainProgram)); err != nil {
		return fmt.Errorf("pin chain: %w", err)
	}
	if v.Counters != nil {
		if err := pinMap(v.Counters, filepath.Join(aside, chainRuns)); err != nil {
			return fmt.Errorf("pin chain's counters: %w", err)
		}
	}
	if err := os.Rename(aside, place); err != nil {
		return fmt.Errorf("pin chain: %w", err)
	}
	return nil
}

// PinChainLink pins an interface's new link, in the place of an old one.
func (s *Store) PinChainLink(ifindex int, l link.Link) error {
	path := s.ChainPath(ifindex)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove severed link's pin: %w", err)
	}
	if err := l.Pin(path); err != nil {
		return fmt.Errorf("pin chain's link: %w", err)
	}
	return nil
}

// RepinChain makes again what someone removed of a chain's pins, and tells
// whether anything was missing.
func (s *Store) RepinChain(c *Chain) (bool, error) {
	dir := s.chainDir(c.Ifindex)
	healed := false
	if id := filepath.Join(dir, versionID(c.Version.Members)); missing(filepath.Join(id, chainProgram)) || c.Version.Counters != nil && missing(filepath.Join(id, chainRuns)) {
		if err := s.PinChainVersion(c.Ifindex, c.Version); err != nil {
			return false, err
		}
		healed = true
	}
	if path := s.ChainPath(c.Ifindex); missing(path) {
		if err := errors.Join(c.Link.Unpin(), c.Link.Pin(path)); err != nil {
			return healed, fmt.Errorf("pin chain's link again: %w", err)
		}
		healed = true
	}
	return healed, nil
}

// OpenChain opens an interface's link and the version it runs, which is the
// one with the program id the link tells. The version is nil where no pinned
// program is the link's; there is no chain where there is no link.
func (s *Store) OpenChain(ifindex int) (*Chain, error) {
	l, err := link.LoadPinnedLink(s.ChainPath(ifindex), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.RemoveChain(&Chain{Ifindex: ifindex})
	}
	if err != nil {
		return nil, fmt.Errorf("open pinned chain: %w", err)
	}
	facts, err := Inspect(l)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	c := &Chain{Ifindex: ifindex, Link: l}
	ids, err := list(s.chainDir(ifindex))
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	for _, id := range ids {
		if id == chainLink {
			continue
		}
		v, program, err := openVersion(filepath.Join(s.chainDir(ifindex), id))
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		if v == nil {
			continue
		}
		if program == facts.Program && c.Version == nil {
			c.Version = v
			continue
		}
		if err := v.Close(); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// openVersion opens one directory of a chain, and its program's id. A
// directory that lacks its program, or whose members cannot be read, gives no
// version.
func openVersion(dir string) (*ChainVersion, ebpf.ProgramID, error) {
	v := &ChainVersion{}
	found, err := list(dir)
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
	if v.Program, err = ebpf.LoadPinnedProgram(filepath.Join(dir, chainProgram), nil); err != nil {
		return nil, 0, fmt.Errorf("open pinned chain: %w", err)
	}
	if path := filepath.Join(dir, chainRuns); !missing(path) {
		if v.Counters, err = ebpf.LoadPinnedMap(path, nil); err != nil {
			return nil, 0, errors.Join(fmt.Errorf("open chain's counters: %w", err), v.Close())
		}
	}
	info, err := v.Program.Info()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("read info of chain: %w", err), v.Close())
	}
	id, _ := info.ID()
	return v, id, nil
}

// readMember reads the text of one member.
func readMember(text string) (m plan.Member, ok bool) {
	err := json.Unmarshal([]byte(text), &m)
	return m, err == nil
}

// DropChainVersions removes the pins of all versions but the one that runs.
func (s *Store) DropChainVersions(c *Chain) error {
	found, err := list(s.chainDir(c.Ifindex))
	if err != nil {
		return err
	}
	for _, n := range found {
		if n == chainLink || c.Version != nil && n == versionID(c.Version.Members) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(s.chainDir(c.Ifindex), n)); err != nil {
			return fmt.Errorf("drop chain's old program: %w", err)
		}
	}
	return nil
}

// RemoveChain unpins an interface's link and programs and lets them go, which
// detaches.
func (s *Store) RemoveChain(c *Chain) error {
	if c.Link != nil {
		sever(c.Link)
	}
	// The link goes first: the kernel must not run what nobody can name.
	if err := os.Remove(s.ChainPath(c.Ifindex)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove chain's pin: %w", err)
	}
	err := c.Close()
	if rerr := os.RemoveAll(s.chainDir(c.Ifindex)); rerr != nil {
		err = errors.Join(err, fmt.Errorf("remove chain's pins: %w", rerr))
	}
	// The last chain takes the directory of all with it.
	if rerr := os.Remove(filepath.Join(s.root, chainsDir)); rerr != nil && !errors.Is(rerr, unix.ENOTEMPTY) && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("remove chains' directory: %w", rerr))
	}
	return err
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
