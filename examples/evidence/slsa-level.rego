# What controls the kernel is built at SLSA build level 3; what watches it, at 2.
package skep.policy

import data.skep.evidence.slsa
import data.skep.lib

# The level that each builder can have is for us to say, and not for provenance.
builders := {
	"https://github.com/actions/runner/github-hosted": 2,
	"https://github.com/slsa-framework/slsa-github-generator/.github/workflows/*@refs/tags/*": 3,
}

level := slsa.level(input.attestations, ["ci"], builders)

needed := max({2} | {3 |
	some attachment in lib.attachments(input.application.spec, input.bytecode)
	object.get(data.hooks, [attachment.hook, "risk"], "Control") != "Observe"
})

deny contains {
	"rule": "slsa-level",
	"path": "spec.bytecode.image",
	"msg": sprintf("the image has SLSA build level %d, and its hooks need %d", [level, needed]),
	"fix": "build it with slsa-github-generator",
} if {
	level < needed
}
