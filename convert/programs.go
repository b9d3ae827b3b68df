package convert

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// config reads the kinds of bpfd that held one program of any type.
func (d *draft) config(spec *fields) {
	hookType := strings.ToLower(spec.text("type"))
	name := spec.take("name")
	at := spec.mapping("spec.programs", "attachpoint")
	program := ""
	if name != nil {
		program = spec.textOf(name)
	}
	index := d.program(program)
	place := programPlace(index)
	if name != nil {
		d.todo(name.node, name.path, place, written(name.node)+": bpfd named programs by their section; write the name of the function, as "+
			"skep image inspect lists it")
	}
	if at == nil {
		at = &fields{d: d, path: spec.path}
	}
	inner := at
	for _, shape := range []string{"networkmultiattach", "singleattach"} {
		if f := at.mapping(place, shape); f != nil {
			inner = f
		}
	}
	if priority := spec.take("priority"); priority != nil {
		inner.all = append(inner.all, priority)
		priority.taken = false
	}
	d.attach(index, hookType, inner)
	inner.rest()
	at.rest()
	d.detached(index, spec.path)
}

// single reads the kinds of one program of one type.
func (d *draft) single(spec *fields, hookType string) {
	index := d.program(spec.text("bpffunctionname"))
	d.attach(index, hookType, spec)
	spec.rest()
	d.detached(index, spec.path)
}

// programs reads an application: a list of programs, or a mapping of them by name.
func (d *draft) programs(spec *fields) {
	one := spec.take("programs")
	if one == nil {
		return
	}
	step, first := 1, 0
	switch one.node.Kind {
	case yaml.MappingNode:
		step, first = 2, 1
	case yaml.ScalarNode:
		spec.wrong(one, "a list of programs")
	}
	nodes := d.bounded(one, "spec.programs", one.node.Content, step*maxPrograms)
	for i := first; i < len(nodes); i += step {
		f := d.below(fmt.Sprintf("%s[%d]", one.path, i/step), "spec.programs", nodes[i])
		d.applicationProgram(f)
		f.rest()
	}
}

// applicationProgram reads one program of an application.
func (d *draft) applicationProgram(f *fields) {
	typed := f.take("type")
	if typed == nil {
		d.missing(f.path+".type", f.place, "the program has no type, and is left out; add it")
		return
	}
	hookType, name := fold(f.textOf(typed)), f.text("name", "bpffunctionname")
	info := f.mapping(f.place, hookType, hookType+"info")
	if info == nil {
		info = &fields{d: d, path: f.path, place: f.place}
	}
	links := name != ""
	if name == "" {
		name = info.text("bpffunctionname")
	}
	if _, known := typeOf(hookType); !known {
		f.todo(typed, written(typed.node)+": "+unknownType(hookType)+"; the program "+name+" is left out")
		return
	}
	index := d.program(name)
	f.place, info.place = programPlace(index), programPlace(index)
	d.mapOwner(info)
	switch listed := info.take("links", "attachpoints"); {
	case listed != nil:
		d.links(index, hookType, info, listed)
	case !links || info.has("attach"):
		d.attach(index, hookType, info)
	default:
		// It says where fentry and fexit would be attached.
		info.take("function", "functionname")
	}
	info.rest()
	d.detached(index, info.path)
}

// unknownType says of a type of programs why it is not attached.
func unknownType(hookType string) string {
	for _, h := range hook.All() {
		if fold(h.Name) != hookType {
			continue
		}
		if why, instead := h.Obstacle(); why != "" {
			return "Skep does not attach " + h.Name + ": " + why + "; use " + instead
		}
		return "bpfman has no such type; Skep attaches it by hook: " + h.Name
	}
	return "the type is not known here"
}

func (d *draft) mapOwner(info *fields) {
	info.todo(info.owner(), "programs of one application share its maps; across applications see docs/maps.md")
}

// links reads each attachment of a program. What stands beside the list, as the function of fentry
// does, belongs to each.
func (d *draft) links(index int, hookType string, info *fields, listed *field) {
	if listed.node.Kind != yaml.SequenceNode {
		info.wrong(listed, "a list")
		return
	}
	shared := info.take("function", "functionname")
	for i, node := range d.bounded(listed, programPlace(index), listed.node.Content, maxPrograms) {
		f := d.below(fmt.Sprintf("%s[%d]", listed.path, i), programPlace(index), node)
		if shared != nil {
			f.all = append(f.all, &field{name: shared.name, path: shared.path, node: shared.node})
		}
		d.attach(index, hookType, f)
		f.rest()
	}
}

// detached takes out a program that is attached nowhere: without attachments Skep would attach it
// where its section says. It is the last one, since each is read whole before the next.
func (d *draft) detached(index int, path string) {
	list := d.app.Spec.Programs
	if index != len(list)-1 || len(list[index].Attach) > 0 {
		return
	}
	d.app.Spec.Programs = list[:index]
	const place = "spec.programs"
	for i := range d.comments {
		// Another program takes this place.
		if c := &d.comments[i]; c.place == programPlace(index) || strings.HasPrefix(c.place, programPlace(index)+".") {
			c.place = place
		}
	}
	d.missing(path, place, fmt.Sprintf("program %s is loaded and attached nowhere; Skep has no such state, so it is left out. "+
		"Add it when it is to be attached", list[index].Name))
}

// program adds a program, unless one of that name is there, and returns its index.
func (d *draft) program(name string) int {
	list := &d.app.Spec.Programs
	i := slices.IndexFunc(*list, func(p v1alpha1.Program) bool { return p.Name == name })
	if i < 0 {
		i = len(*list)
		*list = append(*list, v1alpha1.Program{Name: name})
	}
	if name == "" {
		d.missing("spec.programs", programPlace(i), "a program has no name; write the name of its function")
	}
	return i
}

func programPlace(index int) string { return fmt.Sprintf("spec.programs[%d]", index) }

// globalData reads the values of variables.
func (d *draft) globalData(spec *fields) {
	one := spec.take("globaldata")
	if one == nil {
		return
	}
	f := d.below(one.path, "spec.variables", one.node)
	values, numbers := map[string][]byte{}, map[string]apiextensionsv1.JSON{}
	for _, v := range f.all {
		v.taken = true
		if n, ok := number(v.node); ok {
			numbers[v.name] = apiextensionsv1.JSON{Raw: []byte(n)}
			f.note(v, written(v.node)+" is taken as a number: bpfman takes bytes alone; write a list of bytes if their order was meant")
			continue
		}
		b, err := raw(v.node)
		if err != nil {
			f.wrong(v, "a list of bytes, a number, or base64")
			continue
		}
		values[v.name] = b
	}
	known, rejected, why := d.typed(values)
	maps.Copy(numbers, known)
	if len(numbers) > 0 {
		d.app.Spec.Variables = numbers
	}
	for _, v := range f.all {
		b, given := values[v.name]
		if _, ok := known[v.name]; ok || !given {
			continue
		}
		reason := why
		if err := rejected[v.name]; err != nil {
			reason = err.Error()
		}
		f.todo(v, untyped(b)+": "+reason)
	}
}

// typed gives values the types that the object of the image says, or says why it cannot.
func (d *draft) typed(values map[string][]byte) (known map[string]apiextensionsv1.JSON, rejected map[string]error, why string) {
	image := d.app.Spec.Bytecode.Image
	if d.options.Variables == nil || image == "" || len(values) == 0 {
		return nil, nil, "the image was not read, so the type is not known; set spec.variables by the type in the object, or convert with --read-images"
	}
	known, rejected, err := d.options.Variables(image, maps.Clone(values))
	if err != nil {
		return nil, nil, fmt.Sprintf("the types could not be read (%v); set spec.variables by the type in the object", err)
	}
	return known, rejected, "the object has no such variable; leave it out, or correct its name"
}

// untyped writes bytes for people: as hex digits, and as the number that they are if they are an
// integer.
func untyped(b []byte) string {
	digits := "bytes 0x" + hex.EncodeToString(b)
	if len(b) > maxWritten/2 {
		digits = fmt.Sprintf("%d bytes", len(b))
	}
	if n, ok := integer(b); ok {
		return fmt.Sprintf("%s, as a little-endian integer %d", digits, n)
	}
	return digits
}

// integer reads bytes as a little-endian number, if they have the size of one.
func integer(b []byte) (n uint64, ok bool) {
	switch len(b) {
	case 1, 2, 4, 8:
	default:
		return 0, false
	}
	for i, one := range b {
		n |= uint64(one) << (8 * i)
	}
	return n, true
}
