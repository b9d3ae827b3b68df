package skep.policy_test

import data.skep.policy

refusals(names) := {reason.rule |
	some reason in policy.deny with input as {"signatures": [{"signer": name, "kind": "key"} | some name in names]}
}

test_the_release_key_and_a_reviewer if {
	refusals(["alice", "release"]) == set()
}

test_two_reviewers if {
	refusals(["alice", "bob"]) == set()
}

test_the_release_key_alone if {
	refusals(["release"]) == {"reviewed", "two-signers"}
}

test_one_reviewer_and_a_stranger if {
	refusals(["alice", "vendor"]) == {"two-signers"}
}
