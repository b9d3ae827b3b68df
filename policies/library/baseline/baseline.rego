# The profile baseline: what holds for every application, whatever other policies
# there are.
#
# Parameters:
#   maxMapMemory      bytes that all maps of the object may take when full, as a
#                     number or as a string such as 256Mi. Default 256Mi.
#   exemptNamespaces  globs of namespaces whose applications these rules do not
#                     deny; "" is the cluster scope, which no other glob matches.
#                     Default none.
#   allowedHelpers    names of helpers and kernel functions that the rules helpers
#                     and unknown-helpers allow, and numbers of helpers that have
#                     no name. Default none.
#   nodeInterfaces    network devices of the node that namespaces may attach to:
#                     an object of lists of names and globs, by globs of
#                     namespaces. Default none.
#   sharedTargets     how many programs at one target that tasks of others run, too,
#                     and pages of text of one file, the applications of a namespace
#                     may have together, beyond the settings of the nodes: an object
#                     of {programs, textPages} by globs of namespaces. It denies
#                     nothing, and grants in the policy called baseline alone.
#                     Default none.
package skep.policy

import data.skep.lib

known_parameters contains name if some name in ["maxMapMemory", "exemptNamespaces", "allowedHelpers", "nodeInterfaces", "sharedTargets"]

# parameters: a misspelt parameter would silently be a default.
deny contains lib.reason("parameters", "", msg, fix) if {
	some name, _ in input.parameters
	not name in known_parameters
	msg := sprintf("the policy has no parameter named %q", [name])
	fix := sprintf("in the policy's spec.parameters, take it out or correct it; there are: %s", [concat(", ", sort(known_parameters))])
}

deny contains lib.reason("parameters", "", msg, fix) if {
	not map_memory_limit
	msg := "the policy's parameter maxMapMemory is not a number of bytes"
	fix := "in the policy's spec.parameters, write maxMapMemory as a number or as a string such as 256Mi"
}

deny contains lib.reason("parameters", "", msg, fix) if {
	some name, types in {"exemptNamespaces": {"string"}, "allowedHelpers": {"string", "number"}}
	not is_list(object.get(input.parameters, name, []), types)
	msg := sprintf("the policy's parameter %s is not a list of names", [name])
	fix := sprintf("in the policy's spec.parameters, write %s as a list", [name])
}

deny contains lib.reason("parameters", "", msg, fix) if {
	not grants_are_lists
	msg := "the policy's parameter nodeInterfaces is not an object of lists of names"
	fix := "in the policy's spec.parameters, write nodeInterfaces as {namespace: [interface, …]}"
}

deny contains lib.reason("parameters", "", msg, fix) if {
	not grants_are_numbers
	msg := "the policy's parameter sharedTargets is not an object of numbers of programs and textPages"
	fix := "in the policy's spec.parameters, write sharedTargets as {namespace: {programs: 8, textPages: 128}}, with whole numbers from 1 to 20000"
}

# A glob that matches nothing would silently grant nothing.
deny contains lib.reason("parameters", "", msg, fix) if {
	some name, _ in object.get(input.parameters, "sharedTargets", {})
	is_string(name)
	not regex.match(`^([a-z0-9*?-]|\[\^?([a-z0-9](-[a-z0-9])?)+\])+$`, name)
	msg := sprintf("the policy's parameter sharedTargets has the key %q, which is neither a namespace nor a glob", [name])
	fix := "in the policy's spec.parameters, write a namespace such as shop, or a glob such as shop-*, team-? or team-[a-c]"
}

grants_are_numbers if {
	grants := object.get(input.parameters, "sharedTargets", {})
	is_object(grants)
	every grant in grants {
		is_object(grant)
		every name, n in grant {
			name in ["programs", "textPages"]
			is_number(n)
			n == floor(n)
			n >= 1
			n <= 20000
		}
	}
}

grants_are_lists if {
	grants := object.get(input.parameters, "nodeInterfaces", {})
	is_object(grants)
	every names in grants {
		is_list(names, {"string"})
	}
}

is_list(value, types) if {
	is_array(value)
	every item in value {
		type_name(item) in types
	}
}

# exempt: the rules below deny nothing in the namespaces that an admin exempted.
exempt if {
	input.namespace.name != ""
	some pattern in object.get(input.parameters, "exemptNamespaces", [])
	is_string(pattern)
	glob.match(pattern, null, input.namespace.name)
}

exempt if {
	input.namespace.name == ""
	"" in object.get(input.parameters, "exemptNamespaces", [])
}

helper_allowed(name) if name in object.get(input.parameters, "allowedHelpers", [])

# signed: somebody known vouches for the image.
deny contains lib.reason("signed", lib.image_path, msg, fix) if {
	not exempt
	count(input.signatures) == 0
	msg := sprintf("no known signer signed %s", [lib.image_name(input.image)])
	fix := "sign the image with the key of a signer that is known here, or have an admin add its signer (BpfSigner)"
}

# digest: what was evaluated is named by its content.
deny contains lib.reason("digest", lib.image_path, msg, fix) if {
	not exempt
	not regex.match(`^sha256:[0-9a-f]{64}$`, input.image.digest)
	msg := sprintf("no sha256 digest is recorded for %s", [lib.image_name(input.image)])
	fix := "use an image whose reference resolves to a sha256 digest"
}

# node-interfaces: an application of a namespace reaches the Pods of its namespace, and of the
# node what an admin granted to the namespace. No exemption of the namespace grants it.
deny contains lib.reason("node-interfaces", sprintf("%s.interfaces", [at.path]), msg, fix) if {
	input.namespace.name != ""
	some at in lib.attachments(input.application.spec, input.bytecode)
	data.hooks[at.hook].shape == "NetworkDevice"
	not at.attach.pods
	not interfaces_granted(object.get(at.attach, "interfaces", {}))
	msg := sprintf("program %s attaches to network devices of the node, which are not granted to namespace %s", [at.program, input.namespace.name])
	fix := "give pods, to attach to network devices of the namespace's own Pods, or have an admin add the interfaces to the policy's parameter nodeInterfaces"
}

deny contains lib.reason("node-interfaces", sprintf("%s.interfaces.primary", [at.path]), msg, fix) if {
	input.namespace.name != ""
	some at in lib.attachments(input.application.spec, input.bytecode)
	data.hooks[at.hook].shape == "NetworkDevice"
	not at.attach.pods
	object.get(at.attach, ["interfaces", "primary"], false)
	msg := sprintf("program %s attaches to the interface of the default route, which no parameter grants to a namespace", [at.program])
	fix := "give interfaces.names in place of primary"
}

interfaces_granted(chosen) if {
	grants_are_lists
	not object.get(chosen, "primary", false)
	count(object.get(chosen, "names", [])) > 0
	every name in chosen.names {
		some pattern, names in object.get(input.parameters, "nodeInterfaces", {})
		glob.match(pattern, null, input.namespace.name)
		lib.interface_listed(names, name)
	}
}

# helpers: nothing that reaches out of the program into processes or the kernel.
forbidden_risks := {
	"WritesUserMemory": "writes the memory of processes",
	"OverridesReturn": "makes kernel functions return without running",
	"SendsSignals": "sends signals to processes",
	"MakesSystemCalls": "makes system calls",
	"WritesFiles": "writes the attributes of files",
	"StopsKernel": "stops the kernel",
}

deny contains lib.reason("helpers", lib.program_path(input.application.spec, program.name), msg, fix) if {
	not exempt
	some program in input.bytecode.programs
	some helper in program.helpers
	not helper_allowed(helper)
	what := forbidden_risks[data.helpers[helper].risk]
	msg := sprintf("program %s calls %s, which %s", [program.name, helper, what])
	fix := sprintf("use an image whose programs do not call %s, or have an admin add it to the policy's parameter allowedHelpers", [helper])
}

# The kernel functions that do what those helpers do.
deny contains lib.reason("helpers", lib.program_path(input.application.spec, program.name), msg, fix) if {
	not exempt
	some program in input.bytecode.programs
	some kfunc in program.kfuncs
	not helper_allowed(kfunc)
	what := forbidden_risks[data.kfuncs[kfunc].risk]
	msg := sprintf("program %s calls kernel function %s, which %s", [program.name, kfunc, what])
	fix := sprintf("use an image whose programs do not call %s, or have an admin add it to the policy's parameter allowedHelpers", [kfunc])
}

# unknown-helpers: what nobody can name, nobody can evaluate.
deny contains lib.reason("unknown-helpers", lib.program_path(input.application.spec, program.name), msg, fix) if {
	not exempt
	some program in input.bytecode.programs
	some id in object.get(program, "unknownHelpers", [])
	not helper_allowed(id)
	msg := sprintf("program %s calls helper number %d, which this version of Skep does not know", [program.name, id])
	fix := "use a version of Skep that knows the helper, or an image that does not call it"
}

deny contains lib.reason("unknown-helpers", lib.program_path(input.application.spec, program.name), msg, fix) if {
	not exempt
	some program in input.bytecode.programs
	some helper in program.helpers
	not helper_allowed(helper)
	not data.helpers[helper]
	msg := sprintf("program %s calls %s, which this version of Skep cannot evaluate", [program.name, helper])
	fix := "use a version of Skep that knows the helper, or an image that does not call it"
}

# license: a program that is joined with others into one is loaded under their
# licence, so the kernel no longer checks its own.
deny contains lib.reason("license", lib.program_path(input.application.spec, program.name), msg, fix) if {
	not exempt
	some program in input.bytecode.programs
	not program.gplCompatible
	needs := object.get(program, "gplOnly", [])
	count(needs) > 0
	msg := sprintf("program %s is licensed %q and calls what the kernel gives to GPL-compatible programs only: %s", [program.name, program.license, concat(", ", needs)])
	fix := "license the object GPL-compatibly (section \"license\", such as \"Dual BSD/GPL\"), or do without those calls"
}

# map-memory: what the maps take when full, with the definition's own sizes.
map_memory_limit := lib.bytes(object.get(input.parameters, "maxMapMemory", 268435456))

map_sizes := sort([[n, map.name] |
	some map in input.bytecode.maps
	n := lib.map_memory(map, input.bytecode.cpus, object.get(input.application.spec, ["maps", map.name], {}))
])

map_memory := sum([n | some [n, _] in map_sizes])

# The three largest maps, which are what to make smaller.
largest_maps := [sprintf("%s (%s)", [name, lib.mebibytes(n)]) |
	some [n, name] in array.slice(array.reverse(map_sizes), 0, 3)
]

deny contains lib.reason("map-memory", path, msg, fix) if {
	not exempt
	map_memory > map_memory_limit
	path := map_memory_path
	msg := sprintf("the maps can take %s, and the policy allows %s; the largest: %s", [lib.mebibytes(map_memory), lib.mebibytes(map_memory_limit), concat(", ", largest_maps)])
	fix := "make the maps smaller (spec.maps.<name>.maxEntries), or have an admin raise the policy's parameter maxMapMemory"
}

# unbounded-memory: maps with a value for each socket, inode, task or cgroup. A namespace may not
# have them, and no exemption grants them: the gate denies them, too, whatever policies there are.
unbounded_maps contains sprintf("map %s of type %s takes memory of the agent for each of the node's %s", [map.name, map.type, map.unboundedBy]) if {
	some map in input.bytecode.maps
	map.unboundedBy
}

unbounded_fix := "use a map of entries, such as LRUHash, where that is enough"

deny contains lib.reason("unbounded-memory", lib.image_path, msg, unbounded_fix) if {
	input.namespace.name != ""
	some takes in unbounded_maps
	msg := sprintf("%s, which no limit of namespace %s bounds", [takes, input.namespace.name])
}

warn contains lib.reason("unbounded-memory", lib.image_path, msg, unbounded_fix) if {
	input.namespace.name == ""
	some takes in unbounded_maps
	msg := sprintf("%s, and no policy bounds it", [takes])
}

map_memory_path := "spec.maps" if {
	count(object.get(input.application.spec, "maps", {})) > 0
} else := lib.image_path

# labels: what the image claims of itself is true.
deny contains lib.reason("labels", lib.image_path, mismatch.message, mismatch.fix) if {
	not exempt
	some mismatch in input.image.mismatches
}

# poisoned-calls: CO-RE took a call away, and the verifier refuses the program
# where the call is reachable.
warn contains lib.reason("poisoned-calls", lib.program_path(input.application.spec, program.name), msg, fix) if {
	some program in input.bytecode.programs
	calls := object.get(program, "poisonedCalls", 0)
	calls > 0
	msg := sprintf("program %s has %d calls that CO-RE replaced; a kernel where they are reachable will not load it", [program.name, calls])
	fix := "guard the calls in the source by bpf_core_enum_value_exists or bpf_ksym_exists, or build against a newer libbpf"
}
