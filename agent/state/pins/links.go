package pins

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/bytecode/plain"
)

// textSuffix is appended to a link's pin for the symlink whose text is the
// attachment: the kernel does not tell all of it.
const textSuffix = "+at"

// maxText is the longest text a symlink holds (PATH_MAX with its end).
const maxText = 4095

// Held attaches a program: a bpf_link or, where the hook has none, what the kernel offers
// instead, whose pin is one of the program.
type Held interface {
	Update(*ebpf.Program) error
	Pin(path string) error
	Unpin() error
	Detach() error
	Close() error
}

// Link is a pinned link, held open.
type Link struct {
	UID        string
	Attachment plan.Attachment
	// SpecID is the entry of a USDT probe's arguments in the map of its program.
	SpecID uint32
	Link   Held
	// Path is the pin.
	Path string
}

// Close lets the link go; it stays while it is pinned.
func (l *Link) Close() error { return l.Link.Close() }

// PinLink pins a new link under its attachment's key, in the place of the one
// that has been there. The text is written first: a pin without its text is
// never found. spec is the link's SpecID.
func (s *Store) PinLink(uid string, a plan.Attachment, spec uint32, l Held) (*Link, error) {
	dir := s.linksDir(uid)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make pin directory: %w", err)
	}
	pinned := &Link{UID: uid, Attachment: a, SpecID: spec, Link: l, Path: filepath.Join(dir, a.Key())}
	if err := s.Describe(pinned); err != nil {
		return nil, err
	}
	aside := filepath.Join(dir, newPrefix+a.Key())
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove leftover pin: %w", err)
	}
	if err := plain.Error(l.Pin(aside)); err != nil {
		return nil, fmt.Errorf("pin link: %w", err)
	}
	if err := os.Rename(aside, pinned.Path); err != nil {
		return nil, fmt.Errorf("pin link: %w", err)
	}
	return pinned, nil
}

// MoveLink gives a link the name of another attachment.
func (s *Store) MoveLink(l *Link, to plan.Attachment) error {
	before := *l
	l.Attachment, l.Path = to, filepath.Join(s.linksDir(l.UID), to.Key())
	err := s.Describe(l)
	if err == nil {
		err = os.Rename(before.Path, l.Path)
	}
	if err != nil {
		l.Attachment, l.Path = before.Attachment, before.Path
		return fmt.Errorf("move pin of link: %w", err)
	}
	// A text without its pin is swept at the next start.
	_ = remove(before.Path+textSuffix, inLinks)
	return nil
}

// linkText is what the text beside a link's pin says.
type linkText struct {
	plan.Attachment
	SpecID uint32 `json:"specId,omitempty"`
}

// Describe writes what a link is beside its pin, in the place of what was there.
func (s *Store) Describe(l *Link) error {
	a := l.Attachment
	text, err := json.Marshal(linkText{a, l.SpecID})
	if err != nil {
		return fmt.Errorf("describe link: %w", err)
	}
	if len(text) > maxText {
		return fmt.Errorf("describe link of %s to %s: its target takes %d bytes to write down, and a pin's text holds %d; shorten its paths",
			a.Program, a.Hook, len(text), maxText)
	}
	if err := replaceSymlink(string(text), filepath.Join(s.linksDir(l.UID), a.Key()+textSuffix)); err != nil {
		return fmt.Errorf("describe link: %w", err)
	}
	return nil
}

// replaceSymlink writes the text in one step.
func replaceSymlink(text, path string) error {
	dir, name := filepath.Split(path)
	aside := filepath.Join(dir, newPrefix+name)
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(text, aside); err != nil {
		return err
	}
	return os.Rename(aside, path)
}

// Links opens the pinned links of an application. A text without a pin, or a
// pin without a text, is what a kill left, and is removed. Pins that cannot be
// read are left out and returned as strays.
func (s *Store) Links(uid string) ([]*Link, []Stray, error) {
	dir := s.linksDir(uid)
	found, err := list(dir, inLinks)
	if err != nil {
		return nil, nil, err
	}
	var links []*Link
	var strays []Stray
	for _, n := range found {
		path := filepath.Join(dir, n)
		if key, isText := strings.CutSuffix(n, textSuffix); isText {
			if missing(filepath.Join(dir, key)) {
				if err := remove(path, inLinks); err != nil {
					return nil, nil, errors.Join(err, closeLinks(links))
				}
			}
			continue
		}
		l, err := s.openLink(uid, path)
		if err != nil {
			stray, err := unreadable(uid, path, err)
			if err != nil {
				return nil, nil, errors.Join(err, closeLinks(links))
			}
			strays = append(strays, stray)
		}
		if l != nil {
			links = append(links, l)
		}
	}
	return links, strays, nil
}

// openLink opens one pin by its text, or removes the pin where its text does
// not say what it is.
func (s *Store) openLink(uid, path string) (*Link, error) {
	text, ok := readText(path)
	if !ok {
		return nil, remove(path, inLinks)
	}
	one := &Link{UID: uid, Attachment: text.Attachment, SpecID: text.SpecID, Path: path}
	l, _, err := loadLink(path)
	if err == nil {
		one.Link = l
		return one, nil
	}
	if f := s.openFilter(one); f != nil {
		one.Link = f
		return one, nil
	}
	return nil, err
}

// openFilter returns the filter whose program is pinned in the place of a link; nil where there
// is none.
func (s *Store) openFilter(l *Link) *clsact.Filter {
	program, err := ebpf.LoadPinnedProgram(l.Path, nil)
	if err != nil {
		return nil
	}
	a := l.Attachment
	f, ok := s.Filters.Restore(clsact.Request{
		Hook: a.Hook, Device: a.Target.Device(), Priority: a.Priority, Owner: clsact.OwnerOf(l.UID, a.Instance), Name: a.Program, Program: program,
	})
	if !ok {
		_ = program.Close()
		return nil
	}
	return f
}

// ReadText reads the attachment that Describe wrote beside a link's pin. It is
// not ok where there is none, or where it is another link's.
func ReadText(path string) (a plan.Attachment, ok bool) {
	text, ok := readText(path)
	return text.Attachment, ok
}

func readText(path string) (text linkText, ok bool) {
	body, err := os.Readlink(path + textSuffix)
	if err != nil || json.Unmarshal([]byte(body), &text) != nil {
		return linkText{}, false
	}
	return text, text.Key() == filepath.Base(path)
}

// loadLink opens a pin, and asks the kernel about it.
func loadLink(path string) (link.Link, Facts, error) {
	l, err := plain.Of(link.LoadPinnedLink(path, nil))
	if err != nil {
		return nil, Facts{}, fmt.Errorf("open pinned link: %w", err)
	}
	facts, err := Inspect(l)
	if err != nil {
		return nil, Facts{}, errors.Join(err, l.Close())
	}
	return l, facts, nil
}

func closeLinks(links []*Link) error {
	var errs []error
	for _, l := range links {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// RemovePin unpins the link, which ends with its last descriptor then. Where a pin cannot
// be removed, the link stays open, so that the removal can be tried again.
func (s *Store) RemovePin(l *Link) error {
	if f, ok := l.Link.(*clsact.Filter); !ok {
		Sever(l.Link)
	} else if err := f.Detach(); err != nil {
		// It would stay without its pin.
		return fmt.Errorf("remove filter of %s: %w", l.Attachment.Program, err)
	}
	// The text goes first: a text without its pin is swept, a pin without its text
	// has no owner.
	for _, path := range []string{l.Path + textSuffix, l.Path} {
		if err := remove(path, inLinks); err != nil {
			return fmt.Errorf("remove link of %s: %w", l.Attachment.Program, err)
		}
	}
	return nil
}

// Sever detaches at once, where the kernel can: a link that is only closed may
// hold its hook a little longer. Some links cannot be detached, so an error does
// not matter: they end with their last descriptor and pin, see Remnant.
func Sever(l Held) {
	_ = l.Detach()
}

// Remnant is a link that was unpinned and closed. It ends when no other process holds
// it.
type Remnant struct {
	// Attachment says what it was.
	Attachment plan.Attachment `json:"attachment"`
	// Facts are its last.
	Facts Facts `json:"facts"`
}

// Runs reports whether the kernel still runs the link. It is an error where the
// kernel never told which one it is.
func (r Remnant) Runs() (bool, error) {
	if r.Facts.ID == 0 {
		return false, fmt.Errorf("look for the link of %s: the kernel did not tell its id before its pin was removed, so that it may run still; "+
			"restart the node to be sure", r.Attachment.Program)
	}
	l, err := plain.Of(link.NewFromID(r.Facts.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for link %d: %w", r.Facts.ID, err)
	}
	facts, err := Inspect(l)
	if err := errors.Join(err, l.Close()); err != nil {
		return false, fmt.Errorf("look for link %d: %w", r.Facts.ID, err)
	}
	return facts.Program == r.Facts.Program && !facts.Severed, nil
}

// Renew writes down what changed under a link that stays: its attachment and, where a program
// is pinned in the place of a link, the program.
func (s *Store) Renew(l *Link) error {
	if _, ok := l.Link.(*clsact.Filter); !ok {
		return s.Describe(l)
	}
	_, err := s.PinLink(l.UID, l.Attachment, l.SpecID, l.Link)
	return err
}

// RepinLink makes again a pin that someone removed, and reports whether it did.
func (s *Store) RepinLink(l *Link) (bool, error) {
	pinGone, textGone := missing(l.Path), missing(l.Path+textSuffix)
	if !pinGone && !textGone {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(l.Path), 0o700); err != nil {
		return false, fmt.Errorf("make pin directory: %w", err)
	}
	if err := s.Describe(l); err != nil {
		return false, err
	}
	if pinGone {
		// The library takes the link for pinned still and would do nothing.
		if err := plain.Error(errors.Join(l.Link.Unpin(), l.Link.Pin(l.Path))); err != nil {
			return false, fmt.Errorf("pin link again: %w", err)
		}
	}
	return true, nil
}

// Facts is what the kernel tells about a link.
type Facts struct {
	ID      link.ID
	Program ebpf.ProgramID
	// Severed links have lost their target and run nothing.
	Severed bool
	// Priority is that of a link of netfilter.
	Priority int32 `json:",omitempty"`
	// EndsSlowly: the kernel takes about 0.1 s to end the link, and ends such links one after
	// the other. It has no other way than to close it.
	EndsSlowly bool `json:"-"`
	// Filter is that of a program which no link attaches.
	Filter clsact.Facts `json:",omitzero"`
}

// IsElsewhere reports whether a link runs at another place than its text says, or a filter at
// several.
func (l *Link) IsElsewhere(f Facts) bool {
	return l.Attachment.Netfilter.Hook != "" && f.ID != 0 && f.Priority != l.Attachment.Netfilter.Priority || f.Filter.Copies > 1
}

// Known reports whether the kernel told which link or filter it is.
func (f Facts) Known() bool { return f.ID != 0 || f.Filter.Copies > 0 }

// Identify asks the kernel about a link by its descriptor, and where that fails by its
// pin.
func (l *Link) Identify() (Facts, error) {
	facts, err := Inspect(l.Link)
	if err == nil {
		return facts, nil
	}
	again, facts, pinErr := loadLink(l.Path)
	if pinErr != nil {
		return Facts{}, errors.Join(err, pinErr)
	}
	return facts, again.Close()
}

// Inspect asks the kernel about a link.
func Inspect(l Held) (Facts, error) {
	if f, ok := l.(*clsact.Filter); ok {
		facts, err := f.Facts()
		return Facts{Program: facts.Program, Severed: err == nil && facts.Copies == 0, Filter: facts}, err
	}
	one, ok := l.(link.Link)
	if !ok {
		return Facts{}, fmt.Errorf("read info of link: %T is none", l)
	}
	info, err := plain.Of(one.Info())
	if err != nil {
		return Facts{}, fmt.Errorf("read info of link: %w", err)
	}
	f := Facts{ID: info.ID, Program: info.Program}
	switch info.Type {
	case link.XDPType:
		if x := info.XDP(); x != nil {
			f.Severed = x.Ifindex == 0
		}
	case link.TCXType:
		if x := info.TCX(); x != nil {
			f.Severed = x.Ifindex == 0
		}
	case link.NetkitType:
		if x := info.Netkit(); x != nil {
			f.Severed = x.Ifindex == 0
		}
	case link.CgroupType:
		if x := info.Cgroup(); x != nil {
			f.Severed = x.CgroupId == 0
		}
	case link.NetNsType:
		if x := info.NetNs(); x != nil {
			f.Severed = x.NetnsInode == 0
		}
	case link.PerfEventType, link.KprobeMultiType, link.UprobeMultiType:
		f.EndsSlowly = true
	case link.NetfilterType:
		if x := info.Netfilter(); x != nil {
			f.Priority = x.Priority
		}
	}
	return f, nil
}

// MapsOf returns the kernel's ids of the maps that a program uses.
func MapsOf(id ebpf.ProgramID) ([]ebpf.MapID, error) {
	program, err := plain.Of(ebpf.NewProgramFromID(id))
	if err != nil {
		return nil, fmt.Errorf("open program %d: %w", id, err)
	}
	info, err := plain.Of(program.Info())
	if err := errors.Join(err, program.Close()); err != nil {
		return nil, fmt.Errorf("read info of program %d: %w", id, err)
	}
	ids, ok := info.MapIDs()
	if !ok {
		return nil, fmt.Errorf("read info of program %d: the kernel tells no maps", id)
	}
	return ids, nil
}

// ProgramID returns the kernel's id of a program.
func ProgramID(p *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := plain.Of(p.Info())
	if err != nil {
		return 0, fmt.Errorf("read info of program: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, errors.New("read info of program: the kernel tells no id")
	}
	return id, nil
}
