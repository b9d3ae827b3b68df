package containers

import "log/slog"

// WarnOfOwnPIDs says what a process that is the first of its PID namespace cannot do: the first
// process of a node is its init, and never an agent.
func WarnOfOwnPIDs(log *slog.Logger, pid int) {
	if pid == 1 {
		log.Error("programs cannot be attached in pods: the agent is in a PID namespace of its own, where it finds no process of a container. Run it in the node's " +
			"(hostPID: true; agent.pods.enabled of the chart sets it)")
	}
}
