package skep.policy_test

import data.skep.policy

test_what_is_in_order_is_allowed if {
	count(policy.deny) == 0 with input as good
	count(policy.warn) == 0 with input as good
}

test_unsigned_is_refused if {
	denied := policy.deny with input as with_part(good, "/signatures", [])
	rules(denied) == {"signed"}
	paths(denied, "signed") == {"spec.bytecode.image"}
}

on_node := without_part(good, "/application/spec/programs/0/attach/0/pods")

test_a_namespace_reaches_no_interface_of_the_node if {
	denied := policy.deny with input as on_node
	rules(denied) == {"node-interfaces"}
	paths(denied, "node-interfaces") == {"spec.programs[0].attach[0].interfaces"}
	rules(policy.deny) == {"node-interfaces"} with input as with_part(on_node, "/parameters/exemptNamespaces", ["*"])
}

test_a_cluster_does if {
	count(policy.deny) == 0 with input as with_part(on_node, "/namespace/name", "")
}

test_an_interface_is_granted_to_a_namespace if {
	every grant in [{"team-a": ["eth0"]}, {"team-*": ["eth*"]}, {"team-b": [], "*": ["lo", "eth0"]}] {
		count(policy.deny) == 0 with input as with_part(on_node, "/parameters/nodeInterfaces", grant)
	}
	every grant in [{}, {"team-b": ["eth0"]}, {"team-a": ["eth1"]}, {"team-a": []}] {
		rules(policy.deny) == {"node-interfaces"} with input as with_part(on_node, "/parameters/nodeInterfaces", grant)
	}
	granted := with_part(on_node, "/parameters/nodeInterfaces", {"team-a": ["eth0", "eth*"]})
	every interfaces in [{"names": ["eth0", "lo"]}, {"names": ["e*"]}, {"names": ["*"], "regex": "eth0"}, {"regex": "eth0"}, {"names": []}, {"primary": true}, {"names": ["eth0"], "primary": true}] {
		rules(policy.deny) == {"node-interfaces"} with input as with_part(granted, "/application/spec/programs/0/attach/0/interfaces", interfaces)
	}
}

test_no_parameter_grants_the_primary_interface if {
	granted := with_part(on_node, "/parameters/nodeInterfaces", {"*": ["*", "primary"]})
	denied := policy.deny with input as with_part(granted, "/application/spec/programs/0/attach/0/interfaces", {"primary": true})
	paths(denied, "node-interfaces") == {"spec.programs[0].attach[0].interfaces", "spec.programs[0].attach[0].interfaces.primary"}
}

test_grants_of_another_type_allow_nothing if {
	every grants in [["eth0"], {"team-a": "eth0"}, {"team-a": [1]}, "eth0"] {
		"parameters" in rules(policy.deny) with input as with_part(on_node, "/parameters/nodeInterfaces", grants)
	}
}

test_more_at_shared_targets_is_granted_in_whole_numbers if {
	every grants in [{}, {"team-a": {"programs": 8}}, {"team-*": {"programs": 8, "textPages": 20000}, "x": {}}] {
		count(policy.deny) == 0 with input as with_part(good, "/parameters/sharedTargets", grants)
	}
	every grants in [8, [], {"team-a": 8}, {"team-a": {"programs": "8"}}, {"team-a": {"programs": 0}}, {"team-a": {"programs": 1.5}}, {"team-a": {"textPages": 20001}}, {"team-a": {"pages": 8}}] {
		rules(policy.deny) == {"parameters"} with input as with_part(good, "/parameters/sharedTargets", grants)
	}
}

test_more_at_shared_targets_is_granted_by_globs if {
	every name in ["shop", "shop-*", "*", "team-?", "team-[a-c]", "team-[^x0-9]*"] {
		count(policy.deny) == 0 with input as with_part(good, "/parameters/sharedTargets", {name: {"programs": 8}})
	}
	every name in ["", "sh[op", "shop]", "sh[]op", "sh[a-]op", "sh[!o]p", "{shop,team}", "sh\\*op", "Shop", "shop/*"] {
		denied := policy.deny with input as with_part(good, "/parameters/sharedTargets", {name: {"programs": 8}, "team-*": {"programs": 8}})
		rules(denied) == {"parameters"}
		{reason.msg | some reason in denied} == {sprintf("the policy's parameter sharedTargets has the key %q, which is neither a namespace nor a glob", [name])}
	}
}

test_kfuncs_that_do_the_same_are_refused if {
	every kfunc in ["bpf_send_signal_task", "crash_kexec", "bpf_set_dentry_xattr"] {
		rules(policy.deny) == {"helpers"} with input as with_program(good, {"kfuncs": [kfunc]})
	}
	count(policy.deny) == 0 with input as with_program(good, {"kfuncs": ["bpf_xdp_metadata_rx_hash", "bpf_copy_from_user_str"]})
}

test_a_signature_of_any_known_signer_will_do if {
	count(policy.deny) == 0 with input as with_part(good, "/signatures/0/signer", "somebody")
}

test_no_digest_is_refused if {
	every digest in ["", "sha256:abc", "latest", "md5:4355a46b19d348dc2f57c046f8ef63d4"] {
		rules(policy.deny) == {"digest"} with input as with_part(good, "/image/digest", digest)
	}
}

test_every_helper_that_reaches_out_is_refused if {
	every helper in [
		"bpf_probe_write_user",
		"bpf_override_return",
		"bpf_send_signal",
		"bpf_send_signal_thread",
		"bpf_sys_bpf",
	] {
		denied := policy.deny with input as with_program(good, {"helpers": ["bpf_map_lookup_elem", helper]})
		rules(denied) == {"helpers"}
		paths(denied, "helpers") == {"spec.programs[0]"}
	}
}

test_a_program_that_is_not_listed_is_judged_too if {
	hidden := object.union(program, {"name": "tail", "helpers": ["bpf_send_signal"]})
	denied := policy.deny with input as with_part(good, "/bytecode/programs/-", hidden)
	paths(denied, "helpers") == {"spec.bytecode.image"}
}

test_unknown_helper_numbers_are_refused if {
	rules(policy.deny) == {"unknown-helpers"} with input as with_program(good, {"unknownHelpers": [9999]})
}

test_a_helper_without_a_row_is_refused if {
	rules(policy.deny) == {"unknown-helpers"} with input as with_program(good, {"helpers": ["bpf_from_the_future"]})
}

test_gpl_only_calls_need_the_gpl if {
	closed := {"license": "Proprietary", "gplCompatible": false, "gplOnly": ["bpf_ktime_get_coarse_ns"]}
	rules(policy.deny) == {"license"} with input as with_program(good, closed)
	count(policy.deny) == 0 with input as with_program(good, object.union(closed, {"gplCompatible": true}))
}

test_another_licence_will_do_without_gpl_only_calls if {
	count(policy.deny) == 0 with input as with_program(good, {"license": "Proprietary", "gplCompatible": false})
}

test_maps_beyond_the_bound_are_refused if {
	denied := policy.deny with input as with_part(good, "/bytecode/maps/0/memoryBytes", 268435457)
	rules(denied) == {"map-memory"}
	paths(denied, "map-memory") == {"spec.bytecode.image"}
}

test_the_bound_itself_is_allowed if {
	count(policy.deny) == 0 with input as with_part(good, "/bytecode/maps/0/memoryBytes", 268435456 - 4096)
}

test_the_definition_can_make_a_map_too_large if {
	denied := policy.deny with input as with_part(good, "/application/spec/maps", {"counters": {"maxEntries": 4194304}})
	rules(denied) == {"map-memory"}
	paths(denied, "map-memory") == {"spec.maps"}
}

test_the_definition_can_make_a_map_small_enough if {
	large := with_part(good, "/bytecode/maps", [object.union(counters, {"maxEntries": 4194304, "memoryBytes": 268435457})])
	rules(policy.deny) == {"map-memory"} with input as large
	count(policy.deny) == 0 with input as with_part(large, "/application/spec/maps", {"counters": {"maxEntries": 1024}})
}

test_a_map_without_entries_of_its_own_is_counted if {
	every type in ["Hash", "PerCPUHash", "LRUCPUHash", "RingBuf", "Arena"] {
		open := with_part(good, "/bytecode/maps", [object.union(counters, {"type": type, "maxEntries": 0, "memoryBytes": 512})])
		count(policy.deny) == 0 with input as open
		rules(policy.deny) == {"map-memory"} with input as with_part(open, "/application/spec/maps", {"counters": {"maxEntries": 536870912}})
	}
}

test_the_largest_maps_are_named if {
	sizes := {"small": 1048576, "first": 524288000, "second": 209715200, "third": 104857600}
	maps := [object.union(counters, {"name": name, "memoryBytes": bytes}) | some name, bytes in sizes]
	denied := policy.deny with input as with_part(good, "/bytecode/maps", maps)
	some denial in denied
	contains(denial.msg, "the largest: first (500 MiB), second (200 MiB), third (100 MiB)")
	not contains(denial.msg, "small")
}

test_a_size_of_values_counts if {
	open := with_part(good, "/bytecode/maps", [object.union(counters, {"type": "Queue", "valueSize": 0, "maxEntries": 8, "memoryBytes": 512})])
	count(policy.deny) == 0 with input as with_part(open, "/application/spec/maps", {"counters": {"valueSize": 8}})
	rules(policy.deny) == {"map-memory"} with input as with_part(open, "/application/spec/maps", {"counters": {"valueSize": 268435456}})
}

test_the_bound_is_a_parameter if {
	every limit in [4096, "64Ki", "1K"] {
		rules(policy.deny) == {"map-memory"} with input as with_part(good, "/parameters/maxMapMemory", limit)
	}
	count(policy.deny) == 0 with input as with_part(good, "/parameters/maxMapMemory", "1Gi")
}

test_helpers_that_are_listed_are_allowed if {
	calls := with_program(good, {"helpers": ["bpf_send_signal", "bpf_from_the_future"], "kfuncs": ["crash_kexec"], "unknownHelpers": [9999]})
	rules(policy.deny) == {"helpers", "unknown-helpers"} with input as calls
	rules(policy.deny) == {"helpers", "unknown-helpers"} with input as with_part(calls, "/parameters/allowedHelpers", ["bpf_send_signal", 9999])
	count(policy.deny) == 0 with input as with_part(calls, "/parameters/allowedHelpers", ["bpf_send_signal", "bpf_from_the_future", "crash_kexec", 9999])
}

test_exempt_namespaces_are_not_denied if {
	unsigned := with_part(good, "/signatures", [])
	every globs in [[], [""], ["team-b", "x*"], ["team"]] {
		rules(policy.deny) == {"signed"} with input as with_part(unsigned, "/parameters/exemptNamespaces", globs)
	}
	every globs in [["team-a"], ["x", "team-*"], ["*"]] {
		count(policy.deny) == 0 with input as with_part(unsigned, "/parameters/exemptNamespaces", globs)
	}
}

test_the_cluster_scope_is_exempt_by_its_own_name if {
	cluster := with_part(with_part(good, "/signatures", []), "/namespace/name", "")
	rules(policy.deny) == {"signed"} with input as with_part(cluster, "/parameters/exemptNamespaces", ["*", "**"])
	count(policy.deny) == 0 with input as with_part(cluster, "/parameters/exemptNamespaces", [""])
}

test_a_list_that_is_none_is_refused_and_exempts_nothing if {
	every value in ["team-a", {"team-a": true}, [["team-a"]], [7], null, true] {
		denied := policy.deny with input as with_part(with_part(good, "/signatures", []), "/parameters/exemptNamespaces", value)
		rules(denied) == {"parameters", "signed"}
	}
	every value in ["bpf_send_signal", {"x": "bpf_send_signal"}, [["bpf_send_signal"]], [true]] {
		calls := with_program(good, {"helpers": ["bpf_send_signal"]})
		"parameters" in rules(policy.deny) with input as with_part(calls, "/parameters/allowedHelpers", value)
	}
	rules(policy.deny) == {"parameters"} with input as with_part(good, "/parameters/allowedHelpers", "none")
}

test_a_bound_that_is_no_number_of_bytes_is_refused if {
	every limit in [-1, "many", null, [], "12 parsecs"] {
		rules(policy.deny) == {"parameters"} with input as with_part(good, "/parameters/maxMapMemory", limit)
	}
}

test_a_misspelt_parameter_is_refused if {
	denied := policy.deny with input as with_part(good, "/parameters/maxMapMemroy", 1)
	rules(denied) == {"parameters"}
	contains(concat("", fixes(denied, "parameters")), "maxMapMemory")
}

test_labels_that_the_object_contradicts_are_refused if {
	denied := policy.deny with input as with_part(good, "/image/mismatches", [{
		"path": `io.ebpf.programs["other"]`,
		"claimed": "xdp",
		"actual": "",
		"message": "there is no program other",
		"fix": "build it again",
	}])
	rules(denied) == {"labels"}
	fixes(denied, "labels") == {"build it again"}
}

stored := with_part(good, "/bytecode/maps", [object.union(good.bytecode.maps[0], {"type": "SkStorage", "unboundedBy": "sockets"})])

test_unbounded_memory_is_denied_to_a_namespace if {
	every parameters in [{}, {"exemptNamespaces": ["*"]}] {
		rules(policy.deny) == {"unbounded-memory"} with input as with_part(stored, "/parameters", parameters)
		count(policy.warn) == 0 with input as with_part(stored, "/parameters", parameters)
	}
}

test_unbounded_memory_of_the_cluster_warns if {
	of_cluster := with_part(stored, "/namespace/name", "")
	count(policy.deny) == 0 with input as of_cluster
	rules(policy.warn) == {"unbounded-memory"} with input as of_cluster
}

test_poisoned_calls_warn if {
	poisoned := with_program(good, {"poisonedCalls": 2})
	count(policy.deny) == 0 with input as poisoned
	rules(policy.warn) == {"poisoned-calls"} with input as poisoned
}

test_every_reason_says_what_mends_it if {
	bad := with_part(with_part(with_program(good, {"helpers": ["bpf_send_signal", "x"], "unknownHelpers": [1000], "gplCompatible": false, "gplOnly": ["x"]}), "/signatures", []), "/image", {
		"registry": "", "repository": "", "digest": "", "size": 0, "labels": {}, "mismatches": [{"message": "x", "fix": "y"}],
	})
	denied := policy.deny with input as with_part(with_part(bad, "/parameters", {"x": 1, "maxMapMemory": 1}), "/bytecode/programs/0/poisonedCalls", 1)
	rules(denied) == {"digest", "helpers", "labels", "license", "map-memory", "parameters", "signed", "unknown-helpers"}
	every reason in denied {
		reason.msg != ""
		reason.fix != ""
	}
}
