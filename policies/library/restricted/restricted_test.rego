package skep.policy_test

import data.skep.policy

# What an admin would write.
listed := with_part(good, "/parameters", {
	"images": ["registry.example.com/bpf/*"],
	"signers": ["release", "security"],
	"hooks": ["xdp", "tcx/*", "uprobe"],
	"interfaces": ["eth*", "bond0"],
	"priorities": [{"namespaces": ["team-*"], "min": 100, "max": 200}, {"namespaces": [""], "min": 0, "max": 50}],
})

attached(attach) := with_part(listed, "/application/spec/programs/0/attach", [attach])

# A probe of a cluster-wide application, which no guard limits to pods.
probing(binary) := json.patch(attached({"hook": "uprobe", "binary": binary}), [
	{"op": "replace", "path": "/application/kind", "value": "ClusterBpfApplication"},
	{"op": "remove", "path": "/application/metadata/namespace"},
	{"op": "replace", "path": "/namespace/name", "value": ""},
])

test_what_is_listed_is_allowed if {
	count(policy.deny) == 0 with input as listed
}

test_missing_parameters_allow_nothing if {
	denied := policy.deny with input as good
	rules(denied) == {"images", "signers", "hooks", "interfaces", "priorities"}
	every reason in denied {
		contains(reason.fix, sprintf("spec.parameters.%s", [reason.rule]))
	}
}

test_parameters_of_another_type_allow_nothing if {
	every name in ["images", "signers", "hooks", "interfaces", "priorities"] {
		every value in ["*", {"*": "*"}, null, true] {
			rules(policy.deny) == {name} with input as with_part(listed, sprintf("/parameters/%s", [name]), value)
		}
	}
}

test_the_rules_of_baseline_hold if {
	rules(policy.deny) == {"signed", "signers"} with input as with_part(listed, "/signatures", [])
	rules(policy.deny) == {"helpers"} with input as with_program(listed, {"helpers": ["bpf_send_signal"]})
}

test_another_repository_is_refused if {
	every repository in ["bpf/a/counter", "other/counter", "bpf"] {
		rules(policy.deny) == {"images"} with input as with_part(listed, "/image/repository", repository)
	}
}

test_another_registry_is_refused if {
	every registry in ["registry.example.com.evil.example", "evil.example", "", "xregistry.example.com"] {
		rules(policy.deny) == {"images"} with input as with_part(listed, "/image/registry", registry)
	}
}

test_layouts_on_disk_are_listed_as_oci if {
	layout := with_part(with_part(listed, "/image/registry", ""), "/image/repository", "/srv/bpf/counter")
	count(policy.deny) == 0 with input as with_part(layout, "/parameters/images", ["oci:/srv/**"])
}

test_a_signer_outside_the_list_does_not_count if {
	denied := policy.deny with input as with_part(listed, "/signatures/0/signer", "intern")
	rules(denied) == {"signers"}
}

test_one_listed_signer_among_others_will_do if {
	count(policy.deny) == 0 with input as with_part(listed, "/signatures/-", {"signer": "intern", "kind": "key"})
}

test_another_hook_is_refused if {
	denied := policy.deny with input as attached({"hook": "tracepoint", "tracepoint": "sched/sched_switch"})
	rules(denied) == {"hooks"}
	paths(denied, "hooks") == {"spec.programs[0].attach[0].hook"}
}

test_a_hook_the_section_implies_is_judged if {
	every attach in [[], [{"interfaces": {"names": ["eth0"]}, "priority": 150}]] {
		implied := with_part(with_program(listed, {"hook": "lsm"}), "/application/spec/programs/0/attach", attach)
		rules(policy.deny) == {"hooks"} with input as implied
	}
}

test_no_hook_at_all_is_refused if {
	nothing := without_part(with_program(listed, {"hook": ""}), "/application/spec/programs/0/attach")
	denied := policy.deny with input as nothing
	rules(denied) == {"hooks"}
	paths(denied, "hooks") == {"spec.programs[0].hook"}
}

test_a_hook_nobody_knows_is_refused_though_a_glob_lists_it if {
	all := with_part(listed, "/parameters/hooks", ["**"])
	rules(policy.deny) == {"hooks"} with input as with_part(all, "/application/spec/programs/0/attach/0/hook", "warp")
}

test_another_interface_is_refused if {
	denied := policy.deny with input as attached({"hook": "xdp", "priority": 150, "pods": {}, "interfaces": {"names": ["eth1", "lo"]}})
	rules(denied) == {"interfaces"}
	paths(denied, "interfaces") == {"spec.programs[0].attach[0].interfaces.names[1]"}
}

test_a_glob_must_lie_within_the_list if {
	every name in ["eth*", "eth1*", "eth[0-3]", "bond0"] {
		count(policy.deny) == 0 with input as attached({"hook": "xdp", "priority": 150, "pods": {}, "interfaces": {"names": [name]}})
	}
	every name in ["*", "e*", "?th0", "bond*", "bond?", "[e]th0"] {
		rules(policy.deny) == {"interfaces"} with input as attached({"hook": "xdp", "priority": 150, "pods": {}, "interfaces": {"names": [name]}})
	}
}

test_the_primary_interface_is_asked_for_by_name if {
	primary := attached({"hook": "xdp", "priority": 150, "pods": {}, "interfaces": {"primary": true}})
	rules(policy.deny) == {"interfaces"} with input as primary
	rules(policy.deny) == {"interfaces"} with input as with_part(primary, "/parameters/primaryInterface", "yes")
	count(policy.deny) == 0 with input as with_part(primary, "/parameters/primaryInterface", true)
}

test_kfuncs_outside_the_list_are_refused if {
	calls := with_program(listed, {"kfuncs": ["bpf_xdp_metadata_rx_hash"]})
	rules(policy.deny) == {"kfuncs"} with input as calls
	rules(policy.deny) == {"kfuncs"} with input as with_part(calls, "/parameters/kfuncs", ["bpf_task_*"])
	count(policy.deny) == 0 with input as with_part(calls, "/parameters/kfuncs", ["bpf_xdp_metadata_*"])
}

test_priorities_outside_the_range_are_refused if {
	every priority in [0, 99, 201, 1000] {
		denied := policy.deny with input as with_part(listed, "/application/spec/programs/0/attach/0/priority", priority)
		rules(denied) == {"priorities"}
		paths(denied, "priorities") == {"spec.programs[0].attach[0].priority"}
	}
	every priority in [100, 200] {
		count(policy.deny) == 0 with input as with_part(listed, "/application/spec/programs/0/attach/0/priority", priority)
	}
}

test_the_default_priority_is_judged if {
	rules(policy.deny) == {"priorities"} with input as without_part(listed, "/application/spec/programs/0/attach/0/priority")
}

test_another_namespace_has_no_range if {
	rules(policy.deny) == {"priorities"} with input as with_part(listed, "/namespace/name", "kube-system")
}

test_the_cluster_scope_has_its_own_range if {
	cluster := with_part(listed, "/namespace/name", "")
	rules(policy.deny) == {"priorities"} with input as cluster
	count(policy.deny) == 0 with input as with_part(cluster, "/application/spec/programs/0/attach/0/priority", 50)
}

test_a_range_without_numbers_allows_nothing if {
	every row in [{"namespaces": ["*"]}, {"namespaces": ["*"], "min": 0}, {"namespaces": ["*"], "min": null, "max": "9"}, {"min": 0, "max": 1000}, "*"] {
		rules(policy.deny) == {"priorities"} with input as with_part(listed, "/parameters/priorities", [row])
	}
}

test_hooks_without_an_order_need_no_range if {
	probe := probing({"path": "/bin/bash", "symbol": "readline", "pid": 7})
	count(policy.deny) == 0 with input as without_part(probe, "/parameters/priorities")
}

test_reading_kernel_memory_is_refused if {
	every helper in ["bpf_probe_read", "bpf_probe_read_kernel", "bpf_probe_read_kernel_str"] {
		rules(policy.deny) == {"kernel-memory"} with input as with_program(listed, {"helpers": [helper]})
	}
}

test_uprobes_without_a_pid_are_refused if {
	every binary in [{"path": "/bin/bash"}, {"path": "/bin/bash", "pid": 0}, {"path": "/bin/bash", "pid": -1}] {
		denied := policy.deny with input as probing(binary)
		rules(denied) == {"uprobe-pid"}
		paths(denied, "uprobe-pid") == {"spec.programs[0].attach[0].binary.pid"}
	}
}

test_uprobes_of_a_namespace_are_guarded if {
	count(policy.deny) == 0 with input as without_part(
		attached({"hook": "uprobe", "binary": {"path": "/bin/bash", "symbol": "readline"}, "pods": {}}),
		"/parameters/priorities",
	)
}

# A cluster's application whose map counters is granted.
granting(grants) := json.patch(attached({"hook": "xdp", "interfaces": {"names": ["eth0"]}, "priority": 50}), [
	{"op": "replace", "path": "/application/kind", "value": "ClusterBpfApplication"},
	{"op": "remove", "path": "/application/metadata/namespace"},
	{"op": "replace", "path": "/namespace/name", "value": ""},
	{"op": "add", "path": "/application/spec/maps", "value": {"counters": {"export": grants}}},
])

test_maps_are_read_by_whom_the_definition_names if {
	grants := [{"access": "Read", "namespaces": ["team-b"], "groups": ["adm"]}, {"access": "Consume", "namespaces": ["team-b"]}]
	count(policy.deny) + count(policy.warn) == 0 with input as granting(grants)
}

test_writers_of_maps_are_listed if {
	asks := granting([{"access": "Read", "namespaces": ["team-a"]}, {"access": "Write", "namespaces": ["team-a", "infra"], "groups": ["adm"]}])
	denied := policy.deny with input as asks
	paths(denied, "map-writers") == {
		"spec.maps.counters.export[1].namespaces[0]",
		"spec.maps.counters.export[1].namespaces[1]",
		"spec.maps.counters.export[1].groups[0]",
	}
	every fix in fixes(denied, "map-writers") {
		contains(fix, "spec.parameters.mapWriter")
	}

	some_listed := with_part(with_part(asks, "/parameters/mapWriters", ["infr*"]), "/parameters/mapWriterGroups", ["adm"])
	still := policy.deny with input as some_listed
	paths(still, "map-writers") == {"spec.maps.counters.export[1].namespaces[0]"}
	fixes(still, "map-writers") == {"grant Read, or have an admin add it to the policy's parameter mapWriters"}
	count(policy.deny) == 0 with input as with_part(some_listed, "/parameters/mapWriters", ["infra", "team-a"])
}

test_writers_of_another_type_are_none if {
	asks := granting([{"access": "Write", "namespaces": ["infra"], "groups": ["adm"]}])
	every value in ["*", {"*": "*"}, null, true] {
		denied := policy.deny with input as with_part(with_part(asks, "/parameters/mapWriters", value), "/parameters/mapWriterGroups", value)
		count(paths(denied, "map-writers")) == 2
	}
}

test_a_namespace_writes_its_own_maps if {
	every grant in [{"access": "Write"}, {"access": "Write", "namespaces": ["team-a"]}, {"access": "Write", "serviceAccounts": ["admin"]}] {
		own := with_part(listed, "/application/spec/maps", {"counters": {"export": [grant]}})
		count(policy.deny) + count(policy.warn) == 0 with input as own
	}
	group := with_part(listed, "/application/spec/maps", {"counters": {"export": [{"access": "Write", "groups": ["adm"]}]}})
	rules(policy.deny) == {"map-writers"} with input as group
}

test_programs_that_trust_a_map_are_named if {
	asks := with_part(granting([{"access": "Write", "namespaces": ["team-b", "team-a"]}]), "/parameters/mapWriters", ["team-*"])
	warned := policy.warn with input as asks
	{reason.msg | some reason in warned} == {"program count of the cluster may trust map counters, which pods of team-a, team-b may write"}
	count(policy.deny) == 0 with input as asks

	unused := with_program(asks, {"maps": []})
	count(policy.warn) == 0 with input as unused

	shared := with_part(unused, "/application/spec/maps/counters/sharedWith", ["exporter"])
	{reason.msg | some reason in policy.warn} == {"application exporter of the cluster may trust map counters, which pods of team-a, team-b may write"} with input as shared

	outer := {"name": "sets", "type": "ArrayOfMaps", "keySize": 4, "valueSize": 4, "maxEntries": 2, "memoryBytes": 64}
	within := with_part(with_program(asks, {"maps": ["sets"]}), "/bytecode/maps/-", object.union(outer, {"contents": [{"index": 0, "name": "counters"}]}))
	rules(policy.warn) == {"trusted-maps"} with input as within

	defined := with_part(with_part(with_program(asks, {"maps": ["sets"]}), "/bytecode/maps/-", outer), "/application/spec/maps/sets", {"contents": [{"key": 0, "value": "counters"}]})
	rules(policy.warn) == {"trusted-maps"} with input as defined
}
