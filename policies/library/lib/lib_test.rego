package skep.policy_test

import data.skep.lib

test_image_names if {
	lib.image_name({"registry": "r.example.com", "repository": "a/b"}) == "r.example.com/a/b"
	lib.image_name({"registry": "", "repository": "/srv/layout"}) == "oci:/srv/layout"
}

test_globs_of_paths if {
	every value in ["r/a/b", "r/a/c"] {
		lib.matches_any(["x", "r/a/*"], value)
	}
	every value in ["r/a/b/c", "r/a", "xr/a/b", "r/ab"] {
		not lib.matches_any(["x", "r/a/*"], value)
	}
	lib.matches_any(["r/**"], "r/a/b/c")
	lib.matches_any(["r.example.com/*"], "r.example.com/a")
	not lib.matches_any(["r.example.com/*"], "rxexample.com/a")
	not lib.matches_any([], "r")
}

test_interfaces_that_are_names if {
	lib.interface_listed(["eth0", "veth*"], "eth0")
	lib.interface_listed(["eth0", "veth*"], "veth7.100")
	lib.interface_listed(["eth?"], "eth1")
	not lib.interface_listed(["eth0", "veth*"], "eth1")
	not lib.interface_listed([], "eth0")
}

test_interfaces_that_are_globs if {
	lib.interface_listed(["e*"], "eth*")
	lib.interface_listed(["*"], "[a-z]*")
	lib.interface_listed(["eth[0-3]"], "eth[0-3]")
	not lib.interface_listed(["eth?"], "eth*")
	not lib.interface_listed(["eth[0-3]"], "eth*")
	not lib.interface_listed(["eth[0-3]*"], "eth[0-3]0*")
	not lib.interface_listed(["{eth,lo}*"], "{eth,lo}?")
	not lib.interface_listed(["eth*"], "?th0")
	not lib.interface_listed(["eth0"], "eth\\0")
}

test_program_paths if {
	spec := {"programs": [{"name": "a"}, {"name": "b"}]}
	lib.program_path(spec, "b") == "spec.programs[1]"
	lib.program_path(spec, "c") == "spec.bytecode.image"
	lib.program_path({"programs": []}, "a") == "spec.bytecode.image"
}

test_attachments if {
	facts := {"programs": [{"name": "a", "hook": "xdp"}, {"name": "b", "hook": ""}]}
	spec := {"programs": [
		{"name": "a", "attach": [{"hook": "tcx/ingress"}, {"cgroup": "/x"}]},
		{"name": "a", "attach": []},
		{"name": "b"},
		{"name": "nowhere"},
	]}
	lib.attachments(spec, facts) == {
		{"program": "a", "path": "spec.programs[0].attach[0]", "hook": "tcx/ingress", "attach": {"hook": "tcx/ingress"}},
		{"program": "a", "path": "spec.programs[0].attach[1]", "hook": "xdp", "attach": {"cgroup": "/x"}},
		{"program": "a", "path": "spec.programs[1]", "hook": "xdp", "attach": {}},
		{"program": "b", "path": "spec.programs[2]", "hook": "", "attach": {}},
		{"program": "nowhere", "path": "spec.programs[3]", "hook": "", "attach": {}},
	}
}

test_map_bytes if {
	base := {"keySize": 4, "valueSize": 8, "maxEntries": 10, "memoryBytes": 1000}
	lib.map_bytes(base, 4, null) == 1000
	lib.map_bytes(base, 4, 5) == 500
	lib.map_bytes(base, 4, 11) == 1100
	lib.map_bytes(object.union(base, {"maxEntries": 3}), 4, 2) == 667
	every type, bytes in {"Hash": 76, "PerCPUHash": 100, "LRUCPUHash": 100, "PerCPUArray": 100, "RingBuf": 1, "UserRingbuf": 1, "Arena": 65536, "FromTheFuture": 76} {
		lib.map_bytes(object.union(base, {"type": type, "maxEntries": 0}), 4, 7) == bytes * 7
	}
}

test_map_memory if {
	base := {"type": "StackTrace", "keySize": 4, "valueSize": 0, "maxEntries": 10, "memoryBytes": 1000}
	lib.map_memory(base, 4, {}) == 1000
	lib.map_memory(base, 4, {"maxEntries": 5}) == 500
	lib.map_memory(base, 4, {"valueSize": 8}) == 760
	lib.map_memory(base, 4, {"valueSize": 8, "maxEntries": 2}) == 152
	lib.map_memory(object.union(base, {"type": "PerCPUArray"}), 4, {"valueSize": 8, "maxEntries": 2}) == 200
}

test_bytes if {
	every text, number in {"0": 0, "17": 17, "1K": 1000, "1Ki": 1024, "256Mi": 268435456, "2Gi": 2147483648, "1Ti": 1099511627776, "3MB": 3000000} {
		lib.bytes(text) == number
	}
	lib.bytes(4096) == 4096
	every bad in ["", "-1", "1.5Gi", "Mi", "1 Mi", "lots", -1, null, true, [], {}] {
		not lib.bytes(bad)
	}
}

test_mebibytes if {
	lib.mebibytes(268435456) == "256 MiB"
	lib.mebibytes(1048576) == "1 MiB"
	lib.mebibytes(1048577) == "2 MiB"
	lib.mebibytes(1048575) == "1024 KiB"
	lib.mebibytes(4097) == "5 KiB"
	lib.mebibytes(1024) == "1 KiB"
	lib.mebibytes(1023) == "1023 bytes"
	lib.mebibytes(0) == "0 bytes"
}

test_shared_targets_are_those_that_the_definition_names if {
	spec := {"programs": [
		{"name": "enter", "attach": [
			{"hook": "raw_tp", "tracepoint": "sys_enter", "pods": {}},
			{"hook": "kprobe.multi", "functions": {"names": ["vfs_*", "do_exit"], "exclude": ["vfs_read"]}},
		]},
		{"name": "probe", "attach": [
			{"hook": "uprobe", "binary": {"path": "/lib/c", "symbol": "malloc"}},
			{"hook": "uprobe", "binary": {"path": "/lib/c", "symbol": "malloc", "offset": 16}},
			{"hook": "uprobe", "binary": {"path": "/lib/c", "offset": 4096}},
			{"hook": "uprobe.multi", "binary": {"path": "/lib/c", "symbols": {"names": ["str*"]}}},
			{"hook": "usdt", "binary": {"path": "/lib/c", "usdt": {"provider": "libc", "name": "setjmp"}}},
		]},
		{"name": "net", "attach": [{"hook": "xdp", "interfaces": {"names": ["eth0"]}}, {"hook": "cgroup/bind4", "pods": {}}]},
		{"name": "implied"},
	]}
	bytecode := {"programs": [{"name": "implied", "hook": "tracepoint"}]}
	all := lib.shared_targets(spec, bytecode)
	{[t.program, t.target] | some t in all} == {
		["enter", "sys_enter"],
		["enter", "vfs_*"],
		["enter", "do_exit"],
		["probe", "/lib/c:malloc"],
		["probe", "/lib/c:malloc+16"],
		["probe", "/lib/c:+4096"],
		["probe", "/lib/c:str*"],
		["probe", "/lib/c:libc:setjmp"],
	}
	{"program": "enter", "path": "spec.programs[0].attach[0]", "hook": "raw_tp", "target": "sys_enter"} in all
}

test_reasons if {
	lib.reason("r", "p", "m", "x") == {"rule": "r", "path": "p", "msg": "m", "fix": "x"}
}

test_predicates_by_signer_and_type if {
	attestations := [
		{"signer": "a", "predicateType": "https://t.example.com/t", "predicate": 1},
		{"signer": "a", "predicateType": "https://t.example.com/t/v2", "predicate": 2},
		{"signer": "a", "predicateType": "https://t.example.com/tt", "predicate": 3},
		{"signer": "b", "predicateType": "https://t.example.com/t", "predicate": 4},
	]
	lib.predicates(attestations, ["a"], ["https://t.example.com/t"]) == [1, 2]
	lib.predicates(attestations, {"a", "b"}, ["https://t.example.com/t/v2", "https://t.example.com/tt"]) == [2, 3]
	lib.predicates(attestations, [], ["https://t.example.com/t"]) == []
}

test_globs_match_strings_alone if {
	not lib.matches_any(["**"], 5)
	not lib.matches_any(["**"], null)
}
