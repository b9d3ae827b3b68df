package skep.policy_test

import data.skep.policy

tracing(hook, labels) := {
	"application": {"metadata": {"name": "snoop", "labels": labels}},
	"bytecode": {"programs": [{"name": "snoop", "hook": hook}]},
}

test_an_owned_tracer_is_fine if {
	count(policy.deny) == 0 with input as tracing("tracepoint", {"owner": "security"})
}

test_a_tracer_of_nobody_is_refused if {
	some reason in policy.deny with input as tracing("tracepoint", {})
	reason.path == "metadata.labels"
}

test_an_empty_owner_is_nobody if {
	count(policy.deny) == 1 with input as tracing("tracepoint", {"owner": ""})
}

test_what_does_not_watch_needs_no_owner if {
	count(policy.deny) == 0 with input as tracing("xdp", {})
}
