// Command confinedchild is every confined child that Skep has. It owns nothing of its own, and tests
// start it in place of themselves.
package main

import (
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
)

func main() {
	policies.MaybeWorkerChild()
	schemas.MaybeRenderChild()
}
