package skep.policy_test

import data.skep.evidence.vsa

# The form of https://slsa.dev/spec/v1.1/verification_summary.
summary := {
	"verifier": {"id": "https://verify.example.com/v1"},
	"timeVerified": "2026-01-01T00:00:00Z",
	"resourceUri": "registry.example.com/bpf/counter",
	"policy": {"uri": "https://verify.example.com/policy"},
	"verificationResult": "PASSED",
	"verifiedLevels": ["SLSA_BUILD_LEVEL_3", "FEDRAMP_MODERATE"],
	"slsaVersion": "1.1",
}

verified(signer, change) := {
	"signer": signer, "kind": "key", "predicateType": "https://slsa.dev/verification_summary/v1",
	"predicate": object.union(summary, change),
}

wanted := {"verifiers": ["https://verify.example.com/*"], "resources": ["registry.example.com/bpf/*"], "level": 3}

test_an_image_that_passed if {
	vsa.passed([verified("verifier", {})], ["verifier"], wanted)
	vsa.passed([verified("verifier", {})], ["verifier"], object.union(wanted, {"level": 2}))
	vsa.passed([verified("verifier", {"verifiedLevels": []})], ["verifier"], object.union(wanted, {"level": 0}))
	vsa.passed([verified("verifier", {"verifiedLevels": ["SLSA_BUILD_LEVEL_1"]}), verified("verifier", {})], ["verifier"], wanted)
}

test_nobody_passed_it if {
	not vsa.passed([], ["verifier"], wanted)
	not vsa.passed([verified("other", {})], ["verifier"], wanted)
	not vsa.passed([verified("verifier", {"verifier": {"id": "https://elsewhere.example.com/v1"}})], ["verifier"], wanted)
	not vsa.passed([verified("verifier", {"resourceUri": "registry.example.com/other/counter"})], ["verifier"], wanted)
	not vsa.passed([object.union(verified("verifier", {}), {"predicateType": "https://slsa.dev/verification_summary/v0.2"})], ["verifier"], wanted)
}

test_one_failure_counts_for_more_than_a_pass if {
	failed := verified("verifier", {"verificationResult": "FAILED", "verifiedLevels": ["FAILED"]})
	not vsa.passed([verified("verifier", {}), failed], ["verifier"], wanted)
	not vsa.passed([failed], ["verifier"], object.union(wanted, {"level": 0}))
	vsa.passed([verified("verifier", {}), object.union(failed, {"signer": "other"})], ["verifier"], wanted)
}

test_a_level_that_is_too_low if {
	every levels in [["SLSA_BUILD_LEVEL_2"], [], ["SLSA_BUILD_LEVEL_UNEVALUATED"], ["SLSA_SOURCE_LEVEL_3"], ["SLSA_BUILD_LEVEL_03"], [3], null] {
		not vsa.passed([verified("verifier", {"verifiedLevels": levels})], ["verifier"], wanted)
	}
}

test_what_is_wanted_is_complete if {
	every key in ["verifiers", "resources", "level"] {
		not vsa.passed([verified("verifier", {})], ["verifier"], object.remove(wanted, [key]))
	}
	not vsa.passed([verified("verifier", {})], ["verifier"], object.union(wanted, {"level": null}))
}
