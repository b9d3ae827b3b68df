package chain

import "github.com/cilium/ebpf/asm"

// graph tells which functions a function has on the stack above it.
type graph map[string][]string

// callGraph reads calls and callbacks out of instructions in which every
// symbol of starts begins a function.
//
// A callback counts as a call, for the kernel runs it on the stack of the
// helper's caller, unless its function sets up a timer or calls kernel
// functions: what those are given may run later, on a stack of its own.
func callGraph(insns asm.Instructions, starts map[string]bool) graph {
	g := graph{}
	var function string
	pointers := map[string][]string{}
	later := map[string]bool{}
	for _, ins := range insns {
		if s := ins.Symbol(); starts[s] {
			function = s
		}
		switch {
		case ins.IsFunctionCall():
			g[function] = append(g[function], ins.Reference())
		case ins.IsLoadOfFunctionPointer():
			pointers[function] = append(pointers[function], ins.Reference())
		case ins.IsKfuncCall(), ins.IsBuiltinCall() && ins.Constant == int64(asm.FnTimerSetCallback):
			later[function] = true
		}
	}
	for from, to := range pointers {
		if !later[from] {
			g[from] = append(g[from], to...)
		}
	}
	return g
}

// depth is the number of functions along the deepest path from one, that one
// included. A function that reaches itself counts as too deep for any limit:
// the verifier rejects it.
func (g graph) depth(from string) int {
	return g.walk(from, map[string]int{})
}

// onPath marks functions whose depth is being counted.
const onPath = -1

func (g graph) walk(from string, known map[string]int) int {
	switch d, ok := known[from]; {
	case ok && d == onPath:
		return MaxSubprograms
	case ok:
		return d
	}
	known[from] = onPath
	deepest := 0
	for _, to := range g[from] {
		deepest = max(deepest, g.walk(to, known))
	}
	known[from] = deepest + 1
	return deepest + 1
}
