# There is a bill of materials, and nothing in it that we do not want.
package skep.policy

import data.skep.evidence.sbom

unwanted := ["libbpf@0.*", "pkg:github/iovisor/bcc"]

deny contains {
	"rule": "sbom",
	"path": "spec.bytecode.image",
	"msg": sprintf("ci attests no bill of materials, or one with one of %v", [unwanted]),
	"fix": "build it with libbpf 1.0 or later, and attach its SBOM: cosign attest --type cyclonedx",
} if {
	not sbom.lacks(input.attestations, ["ci"], unwanted)
}
