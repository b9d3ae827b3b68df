package skep.policy_test

import data.skep.evidence.slsa

# The form of https://slsa.dev/spec/v1.1/provenance.
provenance(signer, id) := {
	"signer": signer, "kind": "keyless", "predicateType": "https://slsa.dev/provenance/v1",
	"predicate": {
		"buildDefinition": {"buildType": "https://actions.github.io/buildtypes/workflow/v1", "externalParameters": {}},
		"runDetails": {"builder": {"id": id}},
	},
}

# The form of https://slsa.dev/spec/v0.2/provenance.
old_provenance(signer, id) := {
	"signer": signer, "kind": "keyless", "predicateType": "https://slsa.dev/provenance/v0.2",
	"predicate": {"builder": {"id": id}, "buildType": "https://github.com/slsa-framework/slsa-github-generator/container@v1"},
}

hosted := "https://github.com/actions/runner/github-hosted"

generator := "https://github.com/slsa-framework/slsa-github-generator/.github/workflows/generator_container_slsa3.yml@refs/tags/v2.1.0"

generators := "https://github.com/slsa-framework/slsa-github-generator/.github/workflows/*@refs/tags/*"

test_builders if {
	slsa.built_by([provenance("ci", hosted)], ["ci"], [hosted])
	slsa.built_by([old_provenance("ci", generator)], ["ci"], [hosted, generators])
	slsa.built_by([provenance("ci", "x"), provenance("ci", hosted)], {"ci"}, {hosted})
	not slsa.built_by([provenance("ci", generator)], ["ci"], [hosted])
	not slsa.built_by([provenance("ci", hosted)], ["ci"], [])
	not slsa.built_by([], ["ci"], ["**"])
}

test_the_word_of_others_about_the_builder_is_nothing if {
	not slsa.built_by([provenance("vendor", hosted)], ["ci"], [hosted])
	slsa.level([provenance("vendor", hosted)], ["ci"], {hosted: 3}) == 0
}

test_levels if {
	levels := {hosted: 2, generators: 3}
	slsa.level([provenance("ci", hosted)], ["ci"], levels) == 2
	slsa.level([provenance("ci", hosted), old_provenance("ci", generator)], ["ci"], levels) == 3
	slsa.level([provenance("ci", "https://laptop.example.com")], ["ci"], levels) == 0
	slsa.level([], ["ci"], levels) == 0
}

test_a_level_is_a_number if {
	slsa.level([provenance("ci", hosted)], ["ci"], {hosted: "3"}) == 0
}

test_what_is_no_provenance_names_no_builder if {
	not slsa.built_by([object.union(provenance("ci", hosted), {"predicateType": "https://slsa.dev/provenance/v1x"})], ["ci"], [hosted])
	not slsa.built_by([provenance("ci", 5)], ["ci"], ["**"])
	not slsa.built_by([object.union(provenance("ci", hosted), {"predicateType": "https://slsa.dev/provenance/v0.2"})], ["ci"], [hosted])
	every predicate in [null, "x", {}, {"runDetails": "x"}] {
		not slsa.built_by([{"signer": "ci", "predicateType": "https://slsa.dev/provenance/v1", "predicate": predicate}], ["ci"], ["**"])
	}
}
