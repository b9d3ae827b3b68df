# Functions for policies, as data.skep.lib. They read nothing but their
# arguments and the tables data.hooks and data.helpers.
package skep.lib

# A member of deny or warn: the rule's name, the field it is about, what is
# wrong, and what would fix it.
reason(rule, path, msg, fix) := {"rule": rule, "path": path, "msg": msg, "fix": fix}

# The field that names the image, for what is wrong with the image or with what
# is in it.
image_path := "spec.bytecode.image"

# The name that globs for images are matched against: registry/repository, and
# oci:DIR for an OCI layout on disk.
image_name(image) := name if {
	image.registry != ""
	name := sprintf("%s/%s", [image.registry, image.repository])
}

image_name(image) := name if {
	image.registry == ""
	name := sprintf("oci:%s", [image.repository])
}

# Whether a glob of the list matches the value. A star stays between two
# slashes, a double star does not.
matches_any(globs, value) if {
	is_string(value)
	some pattern in globs
	glob.match(pattern, ["/"], value)
}

# Whether an interface name that a definition asks for lies within the list. The
# name may itself be a glob, and then it is compared as text: it must stand in
# the list as it is, or begin as an entry that is a prefix and a star.
interface_listed(globs, name) if name in globs

interface_listed(globs, name) if {
	not regex.match(`[*?\[\\]`, name)
	some pattern in globs
	glob.match(pattern, null, name)
}

interface_listed(globs, name) if {
	some pattern in globs
	endswith(pattern, "*")
	prefix := trim_suffix(pattern, "*")
	not regex.match(`[*?\[\]\\{}!]`, prefix)
	startswith(name, prefix)
}

# The field of the definition that lists a program of the object, or the image
# where none does: it could still be reached by a tail call.
program_path(spec, name) := path if {
	some i, program in spec.programs
	program.name == name
	path := sprintf("spec.programs[%d]", [i])
} else := image_path

# Every place the definition attaches to, with the hook that the program's
# section implies where the definition names none: objects of program, path,
# hook and attach. A hook that nobody names is the empty string.
attachments(spec, bytecode) := named_attachments(spec) | implied_attachments(spec, bytecode)

# Those whose hook the definition names.
named_attachments(spec) := {a |
	some i, program in spec.programs
	some j, attach in object.get(program, "attach", [])
	object.get(attach, "hook", "") != ""
	a := {"program": program.name, "path": attachment_path(i, j), "hook": attach.hook, "attach": attach}
}

# Those whose hook the program's section implies.
implied_attachments(spec, bytecode) := unnamed | unlisted if {
	unnamed := {a |
		some i, program in spec.programs
		some j, attach in object.get(program, "attach", [])
		object.get(attach, "hook", "") == ""
		a := {"program": program.name, "path": attachment_path(i, j), "hook": section_hook(bytecode, program.name), "attach": attach}
	}
	unlisted := {a |
		some i, program in spec.programs
		count(object.get(program, "attach", [])) == 0
		a := {"program": program.name, "path": sprintf("spec.programs[%d]", [i]), "hook": section_hook(bytecode, program.name), "attach": {}}
	}
}

# Every target that a definition names and that tasks of others run, too: tracepoints, functions of the kernel and places in
# files, as objects of program, path, hook and target. A glob is one, whatever it chooses on a node.
shared_targets(spec, bytecode) := {t |
	some at in attachments(spec, bytecode)
	data.hooks[at.hook].shape in {"Tracepoint", "KernelFunction", "UserBinary"}
	some target in named_targets(at.attach)
	t := {"program": at.program, "path": at.path, "hook": at.hook, "target": target}
}

named_targets(attach) := union({
	{name | name := attach.tracepoint},
	{name | some name in attach.functions.names},
	{place(attach.binary, name) | name := attach.binary.symbol},
	{place(attach.binary, name) | some name in attach.binary.symbols.names},
	{place(attach.binary, sprintf("%s:%s", [usdt.provider, usdt.name])) | usdt := attach.binary.usdt},
	{place(attach.binary, "") | attach.binary.path; not attach.binary.symbol; not attach.binary.symbols; not attach.binary.usdt},
})

# A place in a file: a name in it, and an offset from there.
place(binary, name) := sprintf("%s:%s", [binary.path, name]) if object.get(binary, "offset", 0) == 0

place(binary, name) := sprintf("%s:%s+%d", [binary.path, name, binary.offset]) if object.get(binary, "offset", 0) != 0

attachment_path(i, j) := sprintf("spec.programs[%d].attach[%d]", [i, j])

section_hook(bytecode, name) := program.hook if {
	some program in bytecode.programs
	program.name == name
} else := ""

# The bytes a map takes when the definition sets its max_entries, or the object's
# own estimate.
map_bytes(map, _, null) := map.memoryBytes

map_bytes(map, _, entries) := ceil((map.memoryBytes * entries) / map.maxEntries) if {
	entries != null
	map.maxEntries > 0
}

# The object leaves max_entries open, so there is nothing to scale.
map_bytes(map, cpus, entries) := entry_bytes(map, cpus) * entries if {
	entries != null
	map.maxEntries == 0
}

# The bytes a map takes with what the definition sets of it, an object such as
# {"maxEntries": 1024, "valueSize": 8}: the object's own where it sets neither.
map_memory(map, cpus, override) := map_bytes(map, cpus, object.get(override, "maxEntries", null)) if {
	object.get(override, "valueSize", null) == null
}

map_memory(map, cpus, override) := entry_bytes(object.union(map, {"valueSize": override.valueSize}), cpus) * entries if {
	entries := object.get(override, "maxEntries", map.maxEntries)
}

# What one entry takes: the entries of a ring are bytes, those of an arena are
# pages, and all others are a key, a value and their bookkeeping, the value once
# per CPU where the map is.
entry_bytes(map, _) := 1 if map.type in ["RingBuf", "UserRingbuf"]

entry_bytes(map, _) := 65536 if map.type == "Arena"

entry_bytes(map, cpus) := (map.keySize + (map.valueSize * copies(map, cpus))) + 64 if {
	not map.type in ["RingBuf", "UserRingbuf", "Arena"]
}

copies(map, cpus) := cpus if regex.match("(PerCPU|LRUCPU)", map.type)

copies(map, _) := 1 if not regex.match("(PerCPU|LRUCPU)", map.type)

# A number of bytes, given as a number or as a string such as 256Mi. Undefined
# for anything else.
bytes(value) := value if {
	is_number(value)
	value >= 0
}

bytes(value) := units.parse_bytes(value) if {
	is_string(value)
	regex.match(`^[0-9]+([KMGT]i?B?)?$`, value)
}

# Bytes for a person to read: of less than 1 MiB, KiB or bytes.
mebibytes(n) := sprintf("%v MiB", [ceil(n / 1048576)]) if n >= 1048576

mebibytes(n) := sprintf("%v KiB", [ceil(n / 1024)]) if {
	n >= 1024
	n < 1048576
}

mebibytes(n) := sprintf("%v bytes", [n]) if n < 1024

# What the signers of some names attest in statements of one of the types, or of
# a version of it such as type/v1: the predicates.
predicates(attestations, names, types) := [attestation.predicate |
	some attestation in attestations
	attestation.signer in names
	some type in types
	of_type(attestation.predicateType, type)
]

of_type(version, type) if version == type

of_type(version, type) if startswith(version, sprintf("%s/", [type]))
