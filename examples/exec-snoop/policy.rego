# Tracing programs read what processes do, so only those that some team answers
# for may run.
package skep.policy

observes(hook) if data.hooks[hook].risk == "Observe"

deny contains {
	"rule": "owner",
	"path": "metadata.labels",
	"msg": sprintf("the program %s watches processes and nobody answers for it", [program.name]),
	"fix": "set the label owner to the team that does",
} if {
	some program in input.bytecode.programs
	observes(program.hook)
	object.get(input.application.metadata, ["labels", "owner"], "") == ""
}
