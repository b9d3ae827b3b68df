# Bytecode comes from the builder, not from a laptop. The attestation of GitHub's
# provenance action names the runner.
package skep.policy

import data.skep.evidence.slsa

deny contains {
	"rule": "builder",
	"path": "spec.bytecode.image",
	"msg": "ci attests no build on a runner of GitHub's",
	"fix": "build the image in the release workflow, with actions/attest-build-provenance",
} if {
	not slsa.built_by(input.attestations, ["ci"], ["https://github.com/actions/runner/github-hosted"])
}
