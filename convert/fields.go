package convert

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/text"
)

// fields are those of one mapping of the manifest. Each is taken once, by any of its spellings:
// generations differ in upper case and underscores. Whatever nobody takes is noted by rest.
type fields struct {
	d *draft
	// path is the mapping's in the manifest, place that of what it becomes in Skep's document.
	path, place string
	all         []*field
}

// field is one value of a mapping.
type field struct {
	name  string
	path  string
	node  *yaml.Node
	taken bool
}

// fold is what all spellings of a field's name have in common.
func fold(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "") }

// below returns the fields of a value, which becomes place. A value that is no mapping is
// noted and has none.
func (d *draft) below(path, place string, n *yaml.Node) *fields {
	f := &fields{d: d, path: path, place: place}
	if n == nil || n.Tag == "!!null" {
		return f
	}
	if n.Kind != yaml.MappingNode {
		d.todo(n, path, place, "it is no mapping of fields: "+written(n)+" is not read; correct it")
		return f
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		f.all = append(f.all, &field{name: name, path: join(path, name), node: n.Content[i+1]})
	}
	return f
}

// join returns the path of a field, shortened to maxPath.
func join(path, name string) string {
	if path == "" {
		return text.Cut(name, maxPath)
	}
	return text.Cut(path+"."+name, maxPath)
}

// take returns the first field with one of the names, given folded; nil where there is none or
// it is null.
func (f *fields) take(names ...string) *field {
	for _, name := range names {
		for _, one := range f.all {
			if !one.taken && fold(one.name) == name {
				one.taken = true
				if one.node.Tag == "!!null" {
					return nil
				}
				return one
			}
		}
	}
	return nil
}

// has reports whether one of the fields is there and not taken.
func (f *fields) has(names ...string) bool {
	for _, one := range f.all {
		for _, name := range names {
			if !one.taken && fold(one.name) == name {
				return true
			}
		}
	}
	return false
}

// mapping takes a field that is a mapping, which becomes place; nil where it is not there.
func (f *fields) mapping(place string, names ...string) *fields {
	one := f.take(names...)
	if one == nil {
		return nil
	}
	return f.d.below(one.path, place, one.node)
}

// text takes a field that is text; empty where it is not there.
func (f *fields) text(names ...string) string {
	return f.textOf(f.take(names...))
}

// textOf is the text of a field that was taken; empty, with a note, where it is none. A nil one is
// empty.
func (f *fields) textOf(one *field) string {
	if one == nil {
		return ""
	}
	if one.node.Kind != yaml.ScalarNode {
		f.wrong(one, "text")
		return ""
	}
	return one.node.Value
}

// texts takes a field that is one text or a list of texts.
func (f *fields) texts(names ...string) []string {
	one := f.take(names...)
	if one == nil {
		return nil
	}
	if one.node.Kind == yaml.ScalarNode {
		return []string{one.node.Value}
	}
	var list []string
	for _, item := range one.node.Content {
		if one.node.Kind != yaml.SequenceNode || item.Kind != yaml.ScalarNode {
			f.wrong(one, "a list of texts")
			return nil
		}
		list = append(list, item.Value)
	}
	return list
}

// number takes a field that is a number from 0 to most; ok is false where it is not there.
func (f *fields) number(most uint64, names ...string) (n uint64, ok bool) {
	one := f.take(names...)
	if one == nil {
		return 0, false
	}
	n, err := strconv.ParseUint(one.node.Value, 0, 64)
	if err != nil || n > most || one.node.Kind != yaml.ScalarNode {
		f.wrong(one, fmt.Sprintf("a number from 0 to %d", most))
		return 0, false
	}
	return n, true
}

// flag takes a field that is true or false; false where it is not there.
func (f *fields) flag(names ...string) bool {
	return f.flagOf(f.take(names...))
}

// flagOf is the value of a field that was taken; false where it is nil, or, with a note, is none.
func (f *fields) flagOf(one *field) bool {
	if one == nil {
		return false
	}
	value, err := strconv.ParseBool(one.node.Value)
	if err != nil {
		f.wrong(one, "true or false")
	}
	return value
}

// selector takes a label selector; nil where it is not there.
func (f *fields) selector(names ...string) *metav1.LabelSelector {
	one := f.take(names...)
	if one == nil {
		return nil
	}
	var s metav1.LabelSelector
	if err := strict(one.node, &s); err != nil {
		f.wrong(one, "a label selector")
		// It has to choose no more than it did.
		return invalidSelector()
	}
	return &s
}

// owner takes the labels of the program whose maps are shared; nil where there are none. bpfman
// itself writes an empty selector, which chooses nothing here.
func (f *fields) owner() *field {
	one := f.take("mapownerselector")
	var s metav1.LabelSelector
	if one != nil && strict(one.node, &s) == nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		return nil
	}
	return one
}

// invalidSelector is one that vet rejects, so that nothing is chosen: its operator is empty.
func invalidSelector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "invalid"}}}
}

// labels takes a mapping of texts.
func (f *fields) labels(names ...string) map[string]string {
	one := f.take(names...)
	if one == nil {
		return nil
	}
	labels := map[string]string{}
	if err := strict(one.node, &labels); err != nil {
		f.wrong(one, "a mapping of texts")
		return nil
	}
	return labels
}

// raw returns a value of globalData: a list of bytes, or base64 as the API server writes it. Only a
// text is base64: 0x01 and true have its letters too.
func raw(n *yaml.Node) ([]byte, error) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" || n.ShortTag() == "!!binary" {
		return base64.StdEncoding.DecodeString(n.Value)
	}
	if n.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("%s is neither a list of bytes nor base64", written(n))
	}
	list := make([]byte, 0, len(n.Content))
	for _, item := range n.Content {
		b, err := strconv.ParseUint(item.Value, 0, 8)
		if err != nil {
			return nil, fmt.Errorf("%s is no byte", written(item))
		}
		list = append(list, byte(b))
	}
	return list, nil
}

// exactInt is the largest integer that every reader of JSON keeps: 2^53.
const exactInt = 1 << 53

// number returns the integer that a value of globalData is as JSON of a variable, where it is
// written as one: beyond 2^53 as text.
func number(n *yaml.Node) (asJSON string, ok bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" {
		return "", false
	}
	var unsigned uint64
	if n.Decode(&unsigned) == nil {
		asJSON = strconv.FormatUint(unsigned, 10)
		return quotedBeyond(asJSON, unsigned > exactInt), true
	}
	var signed int64
	if n.Decode(&signed) != nil {
		return "", false
	}
	asJSON = strconv.FormatInt(signed, 10)
	return quotedBeyond(asJSON, signed < -exactInt), true
}

// quotedBeyond is a number as text where it is beyond what JSON keeps.
func quotedBeyond(number string, beyond bool) string {
	if beyond {
		return strconv.Quote(number)
	}
	return number
}

// wrong notes a field whose value is of another type.
func (f *fields) wrong(one *field, want string) {
	f.d.todo(one.node, one.path, f.place, fmt.Sprintf("%s is not %s, and is left out; correct it", written(one.node), want))
}

// note notes a field that was taken; a nil one, that is not there, is not noted.
func (f *fields) note(one *field, text string) {
	if one != nil {
		f.d.note(one.node, one.path, f.place, text)
	}
}

// todo is note for what somebody has to decide.
func (f *fields) todo(one *field, text string) {
	if one != nil {
		f.d.todo(one.node, one.path, f.place, text)
	}
}

// rest notes every field that was not taken.
func (f *fields) rest() {
	for _, one := range f.all {
		if !one.taken {
			one.taken = true
			f.todo(one, written(one.node)+": the field is not known here, and is left out; compare what it did with docs/api.md")
		}
	}
}
