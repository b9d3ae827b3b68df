// Package argocd has the parameters of a Config Management Plugin of Argo CD, as it announces them
// and as it is given them (argo-cd, docs/operator-manual/config-management-plugins.md). They are
// the tags of a CUE package.
package argocd

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/skep-dev/skep/schemas"
)

// Announcement is a parameter that a plugin announces.
type Announcement struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Tooltip string `json:"tooltip,omitempty"`
	// ItemType is string, number or boolean.
	ItemType string `json:"itemType"`
	// String is the default.
	String string `json:"string,omitempty"`
}

// Announce says of tags what Argo CD shows of parameters.
func Announce(tags []schemas.Tag) []Announcement {
	all := make([]Announcement, 0, len(tags))
	for _, t := range tags {
		a := Announcement{Name: t.Name, Title: t.Name, Tooltip: t.Doc, ItemType: "string", String: t.Default}
		switch t.Type {
		case "int", "number":
			a.ItemType = "number"
		case "bool":
			a.ItemType = "boolean"
		}
		all = append(all, a)
	}
	return all
}

// parameter is one that a user sets on an Application. A tag takes a string and nothing else.
type parameter struct {
	Name   string            `json:"name"`
	String *string           `json:"string"`
	Array  []string          `json:"array"`
	Map    map[string]string `json:"map"`
}

// Tags reads parameters, as ARGOCD_APP_PARAMETERS has them, as tags: key=value each. None is
// nothing, an empty list or null.
func Tags(parameters string) ([]string, error) {
	if parameters == "" {
		return nil, nil
	}
	var all []parameter
	if err := json.Unmarshal([]byte(parameters), &all); err != nil {
		return nil, err
	}
	tags := make([]string, 0, len(all))
	for _, p := range all {
		if strings.Contains(p.Name, "=") {
			return nil, fmt.Errorf("parameter %q has an = in its name, as no tag of CUE has", p.Name)
		}
		if p.String == nil || p.Array != nil || p.Map != nil {
			return nil, fmt.Errorf("parameter %q has no string; a tag of CUE takes one: write {name: %s, string: …}", p.Name, p.Name)
		}
		tags = append(tags, p.Name+"="+*p.String)
	}
	return tags, nil
}
