// Package rules has Rego that benchmarks load beside baseline. It decides nothing.
package rules

import "fmt"

// Deny are 20 rules such as admins write, about labels, registries, what the bytecode
// calls and where it attaches. None of them denies what the tests deploy.
func Deny() []string {
	var all []string
	for n := range 5 {
		all = append(all,
			fmt.Sprintf(`deny contains {"rule": "label-%[1]d", "msg": "that label is not for applications"} if input.application.metadata.labels["forbidden-%[1]d"]`, n),
			fmt.Sprintf(`deny contains {"rule": "registry-%[1]d", "msg": "that registry is closed"} if input.image.registry == "registry-%[1]d.example.org"`, n),
			fmt.Sprintf(`deny contains {"rule": "helper-%[1]d", "msg": sprintf("program %%s calls it", [p.name])} if {
	some p in input.bytecode.programs
	"bpf_helper_%[1]d" in p.helpers
}`, n),
			fmt.Sprintf(`deny contains {"rule": "interface-%[1]d", "path": sprintf("spec.programs[%%d].attach[%%d]", [i, j]), "msg": "that interface is taken"} if {
	some i, program in input.application.spec.programs
	some j, attach in program.attach
	"taken%[1]d" in attach.interfaces.names
}`, n))
	}
	return all
}
