# The profile restricted: every rule of baseline, and lists of what else is
# allowed. A list that is missing allows nothing.
#
# Parameters:
#   images            globs of registry/repository, such as
#                     registry.example.com/bpf/*; oci:DIR for layouts on disk.
#   signers           names of signers, one of which must have signed.
#   hooks             globs of hooks, such as xdp and tcx/*.
#   interfaces        names and globs of network devices, such as eth*.
#   primaryInterface  true allows the interface of the default route. Default
#                     false.
#   kfuncs            globs of kernel functions that programs may call. Default
#                     none.
#   priorities        list of {namespaces, min, max}: the priorities that the
#                     namespaces (globs; "" is the cluster scope) may use on
#                     ordered hooks, bounds included.
#   mapWriters        globs of namespaces that an application of the cluster may
#                     grant Write to in spec.maps. A namespace may grant it to
#                     itself. Default none.
#   mapWriterGroups   globs of groups of a host that applications may grant Write
#                     to. Default none.
package skep.policy

import data.skep.lib

known_parameters contains name if {
	some name in ["images", "signers", "hooks", "interfaces", "primaryInterface", "kfuncs", "priorities", "mapWriters", "mapWriterGroups"]
}

list_parameter(name) := values if {
	values := object.get(input.parameters, name, [])
	is_array(values)
} else := []

# missing says how to fix a list that is not there.
missing(name) := sprintf("have an admin set spec.parameters.%s in the policy; without it nothing is allowed", [name]) if {
	not is_array(object.get(input.parameters, name, null))
}

# mend_list is the fix where a list does not hold something.
mend_list(name, _) := missing(name)

mend_list(name, choose) := sprintf("%s, or have an admin add it to the policy's parameter %s", [choose, name]) if {
	not missing(name)
}

# images: only listed registries and repositories.
deny contains lib.reason("images", lib.image_path, msg, mend_list("images", "use a listed image")) if {
	name := lib.image_name(input.image)
	not lib.matches_any(list_parameter("images"), name)
	msg := sprintf("image %s is not in the list of images", [name])
}

# signers: one of the signers that are listed by name.
deny contains lib.reason("signers", lib.image_path, msg, mend_list("signers", "sign the image with the key of a listed signer")) if {
	signers := {signature.signer | some signature in input.signatures}
	count(signers & {name | some name in list_parameter("signers")}) == 0
	msg := sprintf("the image is signed by %s, and no listed signer is among them", [named(signers)])
}

named(names) := concat(", ", sort(names)) if count(names) > 0

named(names) := "nobody" if count(names) == 0

# hooks: only listed ones. Those that the definition names need no bytecode.
attachments contains at if some at in lib.named_attachments(input.application.spec)

attachments contains at if {
	not hooks_named
	some at in lib.implied_attachments(input.application.spec, input.bytecode)
}

hooks_named if {
	every program in input.application.spec.programs {
		count(object.get(program, "attach", [])) > 0
		every attach in program.attach {
			object.get(attach, "hook", "") != ""
		}
	}
}

deny contains lib.reason("hooks", sprintf("%s.hook", [at.path]), msg, mend_list("hooks", "attach to a listed hook")) if {
	some at in attachments
	not hook_listed(at.hook)
	msg := sprintf("program %s attaches to hook %q, which is not in the list of hooks", [at.program, at.hook])
}

hook_listed(name) if {
	data.hooks[name]
	lib.matches_any(list_parameter("hooks"), name)
}

# interfaces: only listed ones.
deny contains lib.reason("interfaces", sprintf("%s.interfaces.names[%d]", [at.path, i]), msg, mend_list("interfaces", "attach to a listed interface")) if {
	some at in attachments
	some i, name in object.get(at.attach, ["interfaces", "names"], [])
	not lib.interface_listed(list_parameter("interfaces"), name)
	msg := sprintf("program %s attaches to interface %q, which is not in the list of interfaces", [at.program, name])
}

deny contains lib.reason("interfaces", sprintf("%s.interfaces.primary", [at.path]), msg, fix) if {
	some at in attachments
	object.get(at.attach, ["interfaces", "primary"], false)
	not object.get(input.parameters, "primaryInterface", false) == true
	msg := sprintf("program %s attaches to the interface of the default route", [at.program])
	fix := "name a listed interface, or have an admin set the policy's parameter primaryInterface to true"
}

# kfuncs: none outside the list.
deny contains lib.reason("kfuncs", lib.program_path(input.application.spec, program.name), msg, fix) if {
	some program in input.bytecode.programs
	some kfunc in program.kfuncs
	not lib.matches_any(list_parameter("kfuncs"), kfunc)
	msg := sprintf("program %s calls kernel function %s, which is not in the list of kfuncs", [program.name, kfunc])
	fix := "use an image that does not call it, or have an admin add it to the policy's parameter kfuncs"
}

# priorities: each namespace keeps to its range.
deny contains lib.reason("priorities", sprintf("%s.priority", [at.path]), msg, mend_list("priorities", "use a priority of the namespace's range")) if {
	some at in attachments
	data.hooks[at.hook].sharing == "Ordered"
	priority := object.get(at.attach, "priority", 500)
	not priority_allowed(input.namespace.name, priority)
	msg := sprintf("priority %d on hook %s is outside what %s may use", [priority, at.hook, place])
}

place := "a cluster-wide application" if input.namespace.name == ""

place := sprintf("namespace %s", [input.namespace.name]) if input.namespace.name != ""

priority_allowed(namespace, priority) if {
	some row in list_parameter("priorities")
	some pattern in row.namespaces
	glob.match(pattern, null, namespace)
	is_number(row.min)
	is_number(row.max)
	priority >= row.min
	priority <= row.max
}

# kernel-memory: no helper that reads what the hook does not hand out.
deny contains lib.reason("kernel-memory", lib.program_path(input.application.spec, program.name), msg, fix) if {
	some program in input.bytecode.programs
	some helper in program.helpers
	data.helpers[helper].risk == "ReadsKernelMemory"
	msg := sprintf("program %s calls %s, which reads kernel memory", [program.name, helper])
	fix := sprintf("use an image whose programs do not call %s", [helper])
}

# uprobe-pid: a probe on a file sees every process that maps the file, whichever
# namespace's, unless it is limited to one process. Those of a namespace are guarded:
# they run for its own pods alone.
deny contains lib.reason("uprobe-pid", sprintf("%s.binary.pid", [at.path]), msg, fix) if {
	input.application.kind == "ClusterBpfApplication"
	some at in attachments
	data.hooks[at.hook].shape == "UserBinary"
	object.get(at.attach, ["binary", "pid"], 0) < 1
	msg := sprintf("program %s probes a binary in every process that runs it", [at.program])
	fix := "set binary.pid to the one process that is meant"
}

# map-writers: readers outside of programs write only where a list names them. What a
# program finds in a map decides what it does.
write_grants contains {"map": name, "path": sprintf("spec.maps.%s.export[%d]", [name, i]), "grant": grant} if {
	some name, map in object.get(input.application.spec, "maps", {})
	some i, grant in object.get(map, "export", [])
	grant.access == "Write"
}

deny contains lib.reason("map-writers", sprintf("%s.namespaces[%d]", [write.path, i]), msg, fix) if {
	some write in write_grants
	some i, namespace in object.get(write.grant, "namespaces", [])
	namespace != input.namespace.name
	not lib.matches_any(list_parameter("mapWriters"), namespace)
	msg := sprintf("pods of namespace %s may write map %s, and it is not in the list of mapWriters", [namespace, write.map])
	fix := mend_list("mapWriters", "grant Read")
}

deny contains lib.reason("map-writers", sprintf("%s.groups[%d]", [write.path, i]), msg, fix) if {
	some write in write_grants
	some i, group in object.get(write.grant, "groups", [])
	not lib.matches_any(list_parameter("mapWriterGroups"), group)
	msg := sprintf("members of group %s may write map %s, and it is not in the list of mapWriterGroups", [group, write.map])
	fix := mend_list("mapWriterGroups", "grant Read")
}

# trusted-maps: programs of the cluster that work with what pods of a namespace may write. It is
# for people to know.
warn contains lib.reason("trusted-maps", write.path, msg, fix) if {
	input.application.kind == "ClusterBpfApplication"
	some write in write_grants
	count(object.get(write.grant, "namespaces", [])) > 0
	users := programs_using(write.map) | shared_with(write.map)
	count(users) > 0
	msg := sprintf("%s of the cluster may trust map %s, which pods of %s may write", [named(users), write.map, named({n | some n in write.grant.namespaces})])
	fix := "grant Read, or see that each program checks what it finds in the map"
}

programs_using(map) := {sprintf("program %s", [program.name]) |
	some program in input.bytecode.programs
	some used in program.maps
	map in maps_within(used)
}

# A map, and the maps that a map of maps is made with.
maps_within(name) := ({name} | {content.name |
	some map in input.bytecode.maps
	map.name == name
	some content in object.get(map, "contents", [])
}) | {entry.value |
	some entry in object.get(input.application.spec, ["maps", name, "contents"], [])
	is_string(entry.value)
}

shared_with(map) := {sprintf("application %s", [other]) |
	some other in object.get(input.application.spec, ["maps", map, "sharedWith"], [])
}
