package skep.policy_test

import data.skep.evidence.signers

by(names) := [{"signer": name, "kind": "key"} | some name in names]

test_different_signers_are_counted if {
	signers.at_least(by(["a", "b"]), 2, ["a", "b", "c"])
	signers.at_least(by(["a", "b"]), 1, {"b"})
	not signers.at_least(by(["a", "a"]), 2, ["a", "b"])
	not signers.at_least(by(["a", "x", "y"]), 2, ["a", "b"])
	not signers.at_least([], 1, ["a"])
}

test_nobody_is_no_number_of_signers if {
	not signers.at_least([], 0, ["a"])
	not signers.at_least(by(["a"]), 1, [])
	not signers.at_least(by(["a"]), 1, "a")
}
