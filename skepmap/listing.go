package skepmap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/cilium/ebpf"
)

// The files of a readers' folder beside the pins, which are named as their maps are.
const (
	// ListingFile describes all maps of the folder. It is replaced by rename.
	ListingFile = "maps.json"
	// SocketFile is the Unix socket of package protocol.
	SocketFile = "socket"
	// PinsFolder is, in the volume of a pod, where its BPF file system is mounted.
	PinsFolder = "maps"
)

// The bounds of a readers' folder.
const (
	// MaxListing is the most bytes of a listing.
	MaxListing = 1 << 20
	// MaxMaps is the most maps of a listing.
	MaxMaps = 1024
	// MaxBTF is the most bytes of the BTF of a map.
	MaxBTF = 4 << 20
)

// Access is what a reader may do with a map.
type Access string

// The values of Access.
const (
	// Read is to look entries up and to list them.
	Read Access = "Read"
	// Write is Read, and to change and delete entries.
	Write Access = "Write"
	// Consume is to take the records of a ring buffer. One reader at a time may.
	Consume Access = "Consume"
)

// Listing describes the maps of a readers' folder.
type Listing struct {
	// Application is the one whose programs have the maps.
	Application Application `json:"application"`
	// Digest is that of the bytecode that runs, as sha256:HEX.
	Digest string `json:"digest,omitempty"`
	// Generation is raised when a pin is added, removed or replaced. It is never 0.
	Generation uint64 `json:"generation"`
	// Maps are described by name.
	Maps map[string]MapInfo `json:"maps"`
}

// Application names an application.
type Application struct {
	// Kind is BpfApplication or ClusterBpfApplication.
	Kind string `json:"kind"`
	// Namespace is empty for a ClusterBpfApplication.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// MapInfo describes one map: neither the kernel nor a seccomp profile lets a reader without
// privilege ask for these facts.
type MapInfo struct {
	// Type is the name of an ebpf.MapType, such as PerCPUHash.
	Type string `json:"type"`
	// KeySize and ValueSize are in bytes; a per-CPU map has a value of ValueSize for each CPU.
	KeySize   uint32 `json:"keySize"`
	ValueSize uint32 `json:"valueSize"`
	// MaxEntries is the most entries of the map; of a ring buffer, its size in bytes.
	MaxEntries uint32 `json:"maxEntries"`
	// Flags are those that the map was made with (BPF_F_...).
	Flags uint32 `json:"flags"`
	// Access is what readers of this folder may do.
	Access Access `json:"access"`
	// Group may open the pin of the map's name. It is empty in the volume of a pod.
	Group string `json:"group,omitempty"`
	// Generation is that of the listing when the pin was made: another one is another map.
	Generation uint64 `json:"generation"`
	// BTF is the file in the folder that has the types. It is empty for a map without BTF.
	BTF string `json:"btf,omitempty"`
	// KeyTypeID and ValueTypeID are those of the map's types in BTF. 0 is a type that is not known.
	KeyTypeID   uint32 `json:"keyTypeID,omitempty"`
	ValueTypeID uint32 `json:"valueTypeID,omitempty"`
}

// mapNames are names that a map may have in C, or as a section such as .rodata, of up to maxMapName characters: with the length, the
// pattern would take every reader's memory.
var mapNames = regexp.MustCompile(`^[A-Za-z0-9_.$-]+$`)

const maxMapName = 128

// groups are those of a host, by name or number.
var groups = regexp.MustCompile(`^([a-z_][a-z0-9_-]{0,31}|[0-9]{1,10})$`)

// CheckName returns an error where a map of that name cannot be in a readers' folder: the name is
// that of a file there.
func CheckName(name string) error {
	switch {
	case len(name) > maxMapName || !mapNames.MatchString(name) || name == "." || name == "..":
		return fmt.Errorf("%.200q is no name of a map that readers can open: it has other characters than letters, digits and _ . $ -, or more than 128", name)
	case name == ListingFile, name == SocketFile, name == PinsFolder, filepath.Ext(name) == btfEnding:
		return fmt.Errorf("the map %s cannot be opened by readers: their folder has another file of that name; rename the map", name)
	}
	return nil
}

const btfEnding = ".btf"

// BTFFile is the file with the types of a map.
func BTFFile(name string) string { return name + btfEnding }

// GroupPin is the pin of a map for a further group of a host: a pin has one group, and the pin
// that has the map's name alone is that of the first.
func GroupPin(name, group string) string { return name + "@" + group }

// MapType is the type of a map by its name, and false for a type that this module does not know.
func (i MapInfo) MapType() (ebpf.MapType, bool) {
	for t := ebpf.Hash; t <= ebpf.Arena; t++ {
		if t.String() == i.Type {
			return t, true
		}
	}
	return ebpf.UnspecifiedMap, false
}

// IsPerCPU reports whether the map has a value for each CPU.
func (i MapInfo) IsPerCPU() bool {
	t, known := i.MapType()
	return known && slices.Contains([]ebpf.MapType{ebpf.PerCPUHash, ebpf.PerCPUArray, ebpf.LRUCPUHash, ebpf.PerCPUCGroupStorage}, t)
}

// Check returns an error for a listing that breaks a rule of the format.
func (l Listing) Check() error {
	switch {
	case l.Application.Name == "" || l.Application.Kind == "":
		return errors.New("application has no kind or no name")
	case l.Generation == 0:
		return errors.New("generation is 0; the first is 1")
	case len(l.Maps) > MaxMaps:
		return fmt.Errorf("there are %d maps; at most %d are allowed", len(l.Maps), MaxMaps)
	}
	for name, info := range l.Maps {
		if err := CheckName(name); err != nil {
			return err
		}
		if err := info.check(name, l.Generation); err != nil {
			return fmt.Errorf("map %s: %w", name, err)
		}
	}
	return nil
}

func (i MapInfo) check(name string, newest uint64) error {
	switch {
	case i.Type == "":
		return errors.New("type is missing")
	case !slices.Contains([]Access{Read, Write, Consume}, i.Access):
		return fmt.Errorf("access is %.40q; it is one of Read, Write and Consume", i.Access)
	case i.Generation == 0 || i.Generation > newest:
		return fmt.Errorf("generation is %d; the listing has %d", i.Generation, newest)
	case i.Group != "" && !groups.MatchString(i.Group):
		return fmt.Errorf("group %.40q is no name and no number of a group", i.Group)
	case i.BTF != "" && i.BTF != BTFFile(name):
		return fmt.Errorf("btf is %.200q; it can be %s alone", i.BTF, BTFFile(name))
	case i.BTF == "" && (i.KeyTypeID != 0 || i.ValueTypeID != 0):
		return errors.New("it has the numbers of types, and names no BTF")
	}
	return nil
}

// Encode is the listing as the file has it. A listing that ParseListing would reject is an error.
func (l Listing) Encode() ([]byte, error) {
	if err := l.Check(); err != nil {
		return nil, fmt.Errorf("write %s: %w", ListingFile, err)
	}
	if l.Maps == nil {
		l.Maps = map[string]MapInfo{}
	}
	raw, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", ListingFile, err)
	}
	if raw = append(raw, '\n'); len(raw) > MaxListing {
		return nil, fmt.Errorf("write %s: it has %d bytes; at most %d are allowed", ListingFile, len(raw), MaxListing)
	}
	return raw, nil
}

// ParseListing reads a listing. Fields that it does not know are left out, so that a reader
// outlives newer agents; all else that breaks a rule of the format is an error.
func ParseListing(raw []byte) (Listing, error) {
	var l Listing
	if len(raw) > MaxListing {
		return l, fmt.Errorf("read %s: it has more than %d bytes", ListingFile, MaxListing)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := d.Decode(&l); err != nil {
		return Listing{}, fmt.Errorf("read %s: %w", ListingFile, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Listing{}, fmt.Errorf("read %s: there is more after the JSON object", ListingFile)
	}
	if err := l.Check(); err != nil {
		return Listing{}, fmt.Errorf("read %s: %w", ListingFile, err)
	}
	return l, nil
}

// ReadListing reads the listing of a readers' folder.
func ReadListing(dir string) (Listing, error) {
	raw, err := readFile(filepath.Join(dir, ListingFile), MaxListing)
	if err != nil {
		return Listing{}, err
	}
	return ParseListing(raw)
}

// readFile reads a file of at most that many bytes.
func readFile(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	raw, err := io.ReadAll(io.LimitReader(file, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) > most {
		return nil, fmt.Errorf("read %s: it has more than %d bytes", path, most)
	}
	return raw, nil
}
