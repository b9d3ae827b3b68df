package source

import (
	"net/url"
	"path"
	"path/filepath"
	"strings"
)

// Origin is which definitions a host was told to read. Who changes it may have
// mistyped it, and then the absence of a definition says nothing.
type Origin struct {
	Address string `json:"address"`
	Ref     string `json:"ref,omitempty"`
	Path    string `json:"path"`
}

// Origin is the same for all spellings of one source. It has no secrets: a new
// password is no new source.
func (o Options) Origin() Origin {
	from := Origin{Address: o.Address, Ref: o.Ref, Path: path.Clean(filepath.ToSlash(o.Path))}
	if u, err := url.Parse(o.Address); err == nil && u.Host != "" {
		u.User, u.RawQuery, u.Fragment = nil, "", ""
		from.Address = u.String()
	} else if dir, err := filepath.Abs(o.Address); err == nil && !strings.Contains(o.Address, "://") && !isSCP(o.Address) {
		from.Address = dir
	}
	return from
}

// Shown is the address for people, without secrets. That of a folder is absolute, since the reader may be in another one.
func (o Options) Shown() string {
	if dir := o.Origin().Address; filepath.IsAbs(dir) {
		return dir
	}
	return Redact(o.Address)
}

// String is the origin for people.
func (o Origin) String() string {
	if o == (Origin{}) {
		return "one that is not known"
	}
	said := o.Address
	if o.Ref != "" {
		said += ", ref " + o.Ref
	}
	if o.Path != "." {
		said += ", path " + o.Path
	}
	return said
}
