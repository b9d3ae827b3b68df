# The fleet closes ports and does nothing else: an application with its label
# may attach to tcx/ingress only.
package skep.policy

deny contains {
	"rule": "fleet-hook",
	"path": sprintf("spec.programs[%d].attach[%d].hook", [i, j]),
	"msg": sprintf("the fleet of closed ports attaches to %s", [attachment.hook]),
	"fix": "attach to tcx/ingress, or take the label skep.dev/fleet away",
} if {
	object.get(input.application.metadata, ["labels", "skep.dev/fleet"], "") == "ports"
	some i, program in input.application.spec.programs
	some j, attachment in program.attach
	attachment.hook != "tcx/ingress"
}
