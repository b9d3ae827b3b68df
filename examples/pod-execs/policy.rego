# An application of the cluster that traces pods says of which namespaces: without
# namespaceSelector it would trace all of them.
package skep.policy

deny contains {
	"rule": "namespaces",
	"path": sprintf("spec.programs[%d].attach[%d].pods.namespaceSelector", [i, j]),
	"msg": sprintf("%s traces the pods of every namespace", [program.name]),
	"fix": "choose namespaces by their labels, such as audit: execs",
} if {
	input.application.kind == "ClusterBpfApplication"
	some i, program in input.application.spec.programs
	some j, attachment in program.attach
	attachment.pods
	not chooses(attachment.pods)
}

chooses(pods) if count(pods.namespaceSelector.matchLabels) > 0
