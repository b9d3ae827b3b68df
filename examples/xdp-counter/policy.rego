# Counters look on: what runs first on an interface decides for all, so the
# front of the chain is kept for firewalls.
package skep.policy

deny contains {
	"rule": "front",
	"path": sprintf("spec.programs[%d].attach[%d].priority", [i, j]),
	"msg": sprintf("priority %d is before 50, where firewalls run", [attachment.priority]),
	"fix": "give the counter a priority of 50 or more",
} if {
	some i, program in input.application.spec.programs
	some j, attachment in program.attach
	attachment.hook == "xdp"
	attachment.priority < 50
}
