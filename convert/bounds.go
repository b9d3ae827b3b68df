package convert

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/text"
)

// The bounds of one object. Each is more than a valid application has.
const (
	// maxKey bounds the name of a field, in bytes: YAML reads no longer one.
	maxKey = 1024
	// maxFields bounds the fields of a mapping.
	maxFields = 1024
	// maxPrograms bounds the programs of an object, and the links of a program.
	maxPrograms = 1000
	// maxAttachments bounds the attachments of a document, and maxAttachmentBytes them as JSON.
	maxAttachments, maxAttachmentBytes = 1000, 1 << 20
	// maxNotes bounds the notes of a document.
	maxNotes = 1000
	// maxPath and maxNote bound the path and the text of a note, in bytes.
	maxPath, maxNote = 512, 1024
)

// tooLarge says of an object why it is not read, or nil. Nothing of it would be left out alone: a
// selector without one of its labels chooses more.
func tooLarge(n *yaml.Node) *Note {
	if n.Kind == yaml.MappingNode {
		if len(n.Content) > 2*maxFields {
			return &Note{Line: n.Line, Todo: true, Text: fmt.Sprintf("a mapping has more than %d fields, so the object is left out; shorten it", maxFields)}
		}
		for i := 0; i < len(n.Content); i += 2 {
			if key := n.Content[i]; len(key.Value) > maxKey {
				return &Note{Line: key.Line, Todo: true, Text: fmt.Sprintf("the name of a field, %s, is longer than %d bytes, so the object is left out; shorten it",
					written(key), maxKey)}
			}
		}
	}
	for _, child := range n.Content {
		if found := tooLarge(child); found != nil {
			return found
		}
	}
	return nil
}

// bounded returns the nodes of a list, or as many as are read.
func (d *draft) bounded(one *field, place string, nodes []*yaml.Node, most int) []*yaml.Node {
	if len(nodes) <= most {
		return nodes
	}
	d.todo(one.node, one.path, place, fmt.Sprintf("the list is longer than what is read of it, which is %d; make several applications of it", maxPrograms))
	return nodes[:most]
}

// room returns the attachments if the document has room for them. They repeat what they share, such
// as a selector.
func (d *draft) room(f *fields, added []v1alpha1.Attachment) []v1alpha1.Attachment {
	if len(added) == 0 {
		return nil
	}
	one, err := json.Marshal(added[0])
	d.attachments += len(added)
	d.attachmentBytes += len(added) * len(one)
	if err == nil && d.attachments <= maxAttachments && d.attachmentBytes <= maxAttachmentBytes {
		return added
	}
	d.missing(f.path, f.place, fmt.Sprintf("the attachments are more than %d or take more than %d KiB, and these are left out; make several applications of them",
		maxAttachments, maxAttachmentBytes>>10))
	return nil
}

// The bounds of the schema that have no name in package v1alpha1.
const (
	schemaPrograms, schemaAttach, schemaAttachments, schemaVariables = 64, 16, 256, 256
	schemaNames, schemaContainers, schemaNodeLabels                  = 16, 4, 64
)

// overSchema notes what a valid application has fewer of. It is carried over as it is, and vet
// rejects it.
func (d *draft) overSchema() {
	spec, all := &d.app.Spec, 0
	for i, p := range spec.Programs {
		place := programPlace(i)
		all += len(p.Attach)
		d.atMost(place+".attach", place, len(p.Attach), schemaAttach)
		for j := range p.Attach {
			d.attachmentOverSchema(fmt.Sprintf("%s.attach[%d]", place, j), &p.Attach[j])
		}
	}
	d.atMost("spec.programs", "spec.programs", len(spec.Programs), schemaPrograms)
	d.atMost("spec.programs[].attach", "spec.programs", all, schemaAttachments)
	d.atMost("spec.variables", "spec.variables", len(spec.Variables), schemaVariables)
	d.selectorOverSchema("spec.nodeSelector", spec.NodeSelector, schemaNodeLabels, v1alpha1.MaxSelectorRequirements, v1alpha1.MaxSelectorValues)
}

func (d *draft) attachmentOverSchema(place string, a *v1alpha1.Attachment) {
	if a.Interfaces != nil {
		d.atMost(place+".interfaces.names", place, len(a.Interfaces.Names), schemaNames)
		d.atMost(place+".interfaces.exclude", place, len(a.Interfaces.Exclude), schemaNames)
		if n := utf8.RuneCountInString(a.Interfaces.Regex); n > v1alpha1.MaxRegex {
			d.missing(place+".interfaces.regex", place,
				fmt.Sprintf("it has %d characters, and an attachment has %d at most; shorten it, or make several attachments of it",
					n, v1alpha1.MaxRegex))
		}
	}
	if a.Functions != nil {
		d.atMost(place+".functions.names", place, len(a.Functions.Names), schemaNames)
	}
	if a.Pods != nil {
		d.atMost(place+".pods.containers", place, len(a.Pods.Containers), schemaContainers)
		d.selectorOverSchema(place+".pods.selector", a.Pods.Selector, v1alpha1.MaxPodLabels, v1alpha1.MaxPodRequirements, v1alpha1.MaxPodValues)
	}
}

func (d *draft) selectorOverSchema(place string, s *metav1.LabelSelector, labels, requirements, values int) {
	if s == nil {
		return
	}
	d.atMost(place+".matchLabels", place, len(s.MatchLabels), labels)
	d.atMost(place+".matchExpressions", place, len(s.MatchExpressions), requirements)
	for i, one := range s.MatchExpressions {
		d.atMost(fmt.Sprintf("%s.matchExpressions[%d].values", place, i), place, len(one.Values), values)
	}
}

// atMost notes a list of Skep's document that is longer than the schema takes.
func (d *draft) atMost(path, place string, length, most int) {
	if length > most {
		d.missing(path, place, fmt.Sprintf("%d are listed, and an application has %d at most; make several applications or programs of it", length, most))
	}
}

// add records a note, and the comment at its place.
func (d *draft) add(note Note, place, mark string) {
	switch {
	case len(d.notes) > maxNotes:
		return
	case len(d.notes) == maxNotes:
		note = Note{Line: note.Line, Path: "metadata", Todo: true, Text: fmt.Sprintf("there are more than %d notes, and the rest is not written; make several "+
			"applications of this one, or correct it and convert it again", maxNotes)}
		place, mark = "metadata", todoMark
	}
	note.Path, note.Text = text.Line(text.Cut(note.Path, maxPath)), text.Line(text.Cut(note.Text, maxNote))
	d.notes = append(d.notes, note)
	d.comments = append(d.comments, placed{place, mark + note.Path + ": " + note.Text})
}
