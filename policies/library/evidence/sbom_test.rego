package skep.policy_test

import data.skep.evidence.sbom

attests(signer, type, predicate) := {"signer": signer, "kind": "key", "predicateType": type, "predicate": predicate}

# The form of https://cyclonedx.org/docs/1.6/json/.
cyclonedx(components) := attests("ci", "https://cyclonedx.org/bom", {
	"bomFormat": "CycloneDX", "specVersion": "1.6",
	"metadata": {"component": {"type": "application", "name": "counter"}},
	"components": components,
})

# The form of https://spdx.github.io/spdx-spec/v2.3/.
spdx(packages) := attests("ci", "https://spdx.dev/Document/v2.3", {"spdxVersion": "SPDX-2.3", "packages": packages})

libbpf := {"type": "library", "name": "libbpf", "version": "1.4.0", "purl": "pkg:github/libbpf/libbpf@v1.4.0?arch=amd64#src"}

spdx_libbpf := {"name": "libbpf", "versionInfo": "1.4.0", "externalRefs": [
	{"referenceCategory": "SECURITY", "referenceType": "cpe23Type", "referenceLocator": "cpe:2.3:a:libbpf:libbpf:1.4.0"},
	{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": "pkg:github/libbpf/libbpf@v1.4.0"},
]}

test_what_is_not_part_of_it if {
	every bom in [cyclonedx([libbpf]), spdx([spdx_libbpf])] {
		every package_glob in ["log4j", "libbpf@1.3.*", "bpf", "pkg:github/libbpf", "pkg:github/libbpf/libbpf@v1.3.0", "cpe:*"] {
			sbom.lacks([bom], ["ci"], [package_glob])
		}
		sbom.lacks([bom], ["ci"], [])
	}
}

test_what_is_part_of_it if {
	every bom in [cyclonedx([libbpf]), spdx([spdx_libbpf])] {
		every package_glob in ["libbpf", "LibBPF", "lib*", "libbpf@1.4.*", "pkg:github/libbpf/*", "pkg:github/libbpf/libbpf", "pkg:github/libbpf/libbpf@v1.4.0"] {
			not sbom.lacks([bom], ["ci"], ["other", package_glob])
		}
	}
	not sbom.lacks([cyclonedx([libbpf])], ["ci"], ["pkg:github/libbpf/libbpf@v1.4.0[?]arch=amd64#src"])
}

test_groups_and_scopes if {
	bom := cyclonedx([{"group": "@acme", "name": "maps", "version": "2", "purl": "pkg:npm/@acme/maps@2"}])
	every package_glob in ["maps", "@acme/maps", "@acme/maps@2", "maps@2", "pkg:npm/@acme/*", "pkg:npm/@acme/maps"] {
		not sbom.lacks([bom], ["ci"], [package_glob])
	}
	sbom.lacks([bom], ["ci"], ["pkg:npm/"])
}

test_components_inside_others if {
	bom := cyclonedx([{"name": "a", "components": [{"name": "b", "components": [libbpf]}]}])
	every name in ["a", "b", "libbpf", "counter"] {
		not sbom.lacks([bom], ["ci"], [name])
	}
	sbom.lacks([bom], ["ci"], ["c"])
}

test_every_bill_counts if {
	not sbom.lacks([cyclonedx([{"name": "a"}]), spdx([spdx_libbpf])], ["ci"], ["libbpf"])
	sbom.lacks([cyclonedx([{"name": "a"}]), object.union(spdx([spdx_libbpf]), {"signer": "other"})], ["ci"], ["libbpf"])
}

test_nobody_says_what_it_is_made_of if {
	not sbom.lacks([], ["ci"], ["a"])
	not sbom.lacks([cyclonedx([libbpf])], ["other"], ["a"])
	not sbom.lacks([object.union(cyclonedx([libbpf]), {"predicateType": "https://example.com/bom"})], ["ci"], ["a"])
}

test_a_bill_that_cannot_be_read if {
	every predicate in [null, {}, "SPDXVersion: SPDX-2.3", {"Data": "{}"}, {"components": []}, {"components": [{}]}, {"components": ["a"]}, {"components": [{"name": 1}]}, {"packages": [{"name": "a"}, {}]}] {
		not sbom.lacks([attests("ci", "https://cyclonedx.org/bom", predicate)], ["ci"], ["x"])
	}
	every odd in [{"purl": 1}, {"group": 1}, {"version": {}}, {"externalRefs": [1, {"referenceType": "purl", "referenceLocator": 2}]}] {
		sbom.lacks([cyclonedx([object.union({"name": "a"}, odd)])], ["ci"], ["x"])
		not sbom.lacks([cyclonedx([object.union({"name": "a"}, odd)])], ["ci"], ["a"])
	}
}

test_what_is_no_list_of_packages_is_lacked_by_nothing if {
	every packages in ["log4j", {"log4j": true}, null, 5, [5], [["log4j"]]] {
		not sbom.lacks([cyclonedx([libbpf])], ["ci"], packages)
	}
}
