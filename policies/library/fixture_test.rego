# What the tests of the library share: an application that every profile allows,
# and how to ask.
package skep.policy_test

good := {
	"version": "v1",
	"now": "2026-01-01T00:00:00Z",
	"application": {
		"kind": "BpfApplication",
		"metadata": {"name": "counter", "namespace": "team-a"},
		"spec": {
			"bytecode": {"image": "registry.example.com/bpf/counter:v1"},
			"programs": [{
				"name": "count",
				"attach": [{"hook": "xdp", "pods": {}, "interfaces": {"names": ["eth0"]}, "priority": 150}],
			}],
		},
	},
	"requester": {"username": "alice", "groups": []},
	"namespace": {"name": "team-a", "labels": {}},
	"image": {
		"registry": "registry.example.com",
		"repository": "bpf/counter",
		"tag": "v1",
		"digest": "sha256:4355a46b19d348dc2f57c046f8ef63d4538ebb936000f3c9ee954a27460dd865",
		"size": 4096,
		"labels": {},
		"mismatches": [],
	},
	"signatures": [{"signer": "release", "kind": "key"}],
	"attestations": [],
	"bytecode": {
		"version": "v1",
		"inspector": "1",
		"license": "GPL",
		"byteOrder": "little",
		"btf": true,
		"core": false,
		"programs": [program],
		"maps": [counters, {"name": ".rodata", "type": "Array", "keySize": 4, "valueSize": 8, "maxEntries": 1, "memoryBytes": 4096}],
		"variables": [],
		"memoryBytes": 69632,
		"cpus": 4,
		"minKernel": "5.9",
		"minKernelReasons": [],
	},
	"parameters": {},
}

program := {
	"name": "count",
	"section": "xdp",
	"hook": "xdp",
	"type": "XDP",
	"attachType": "XDP",
	"instructions": 40,
	"helpers": ["bpf_map_lookup_elem"],
	"kfuncs": [],
	"maps": ["counters"],
	"license": "GPL",
	"gplCompatible": true,
}

counters := {"name": "counters", "type": "PerCPUArray", "keySize": 4, "valueSize": 8, "maxEntries": 1024, "memoryBytes": 65536}

# The input with its program's fields changed.
with_program(base, fields) := json.patch(base, [{"op": "replace", "path": "/bytecode/programs/0", "value": object.union(program, fields)}])

# The input with one part of it set; an index inserts and - appends.
with_part(base, path, value) := json.patch(base, [{"op": "add", "path": path, "value": value}])

# The input with one part of it gone.
without_part(base, path) := json.patch(base, [{"op": "remove", "path": path}])

# The names of the rules among the reasons.
rules(reasons) := {reason.rule | some reason in reasons}

# The paths and the fixes of one rule's reasons.
paths(reasons, rule) := {reason.path | some reason in reasons; reason.rule == rule}

fixes(reasons, rule) := {reason.fix | some reason in reasons; reason.rule == rule}
