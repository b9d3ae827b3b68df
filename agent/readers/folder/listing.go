package folder

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// listingFile describes the maps of a folder, and btfEnding ends the name of the file with the types of one.
const (
	listingFile = "maps.json"
	btfEnding   = ".btf"
)

// Listing describes the maps of a readers' folder.
type Listing struct {
	Application struct {
		Kind      string `json:"kind"`
		Namespace string `json:"namespace,omitempty"`
		Name      string `json:"name"`
	} `json:"application"`
	Digest     string             `json:"digest,omitempty"`
	Generation uint64             `json:"generation"`
	Maps       map[string]MapInfo `json:"maps"`
}

// MapInfo describes one map.
type MapInfo struct {
	Type        string `json:"type"`
	KeySize     uint32 `json:"keySize"`
	ValueSize   uint32 `json:"valueSize"`
	MaxEntries  uint32 `json:"maxEntries"`
	Flags       uint32 `json:"flags"`
	Access      string `json:"access"`
	Group       string `json:"group,omitempty"`
	Generation  uint64 `json:"generation"`
	BTF         string `json:"btf,omitempty"`
	KeyTypeID   uint32 `json:"keyTypeID,omitempty"`
	ValueTypeID uint32 `json:"valueTypeID,omitempty"`
}

// readListing reads the listing of a folder. One that is not there or not whole is an empty one: all is then described anew.
func readListing(dir string) Listing {
	var l Listing
	raw, err := os.ReadFile(filepath.Join(dir, listingFile))
	if err != nil || json.Unmarshal(raw, &l) != nil {
		return Listing{}
	}
	return l
}

// encode is the listing as the file has it.
func (l Listing) encode() ([]byte, error) {
	if l.Maps == nil {
		l.Maps = map[string]MapInfo{}
	}
	raw, err := json.MarshalIndent(l, "", "  ")
	return append(raw, '\n'), err
}

// mapNames are names that a map may have in C, or as a section such as .rodata.
var mapNames = regexp.MustCompile(`^[A-Za-z0-9_.$-]{1,128}$`)

// checkName returns an error where a map of that name cannot be in a readers' folder.
func checkName(name string) error {
	if !mapNames.MatchString(name) || name == "." || name == ".." || name == listingFile || name == "socket" || name == "maps" ||
		filepath.Ext(name) == btfEnding {
		return fmt.Errorf("%.200q is no name of a map that readers can open", name)
	}
	return nil
}
