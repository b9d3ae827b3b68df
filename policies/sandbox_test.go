package policies

import "testing"

func TestTheSandboxAllowsNoHost(t *testing.T) {
	box, err := newSandbox()
	if err != nil {
		t.Fatal(err)
	}
	if allowed := box.parserOptions().Capabilities.AllowNet; allowed == nil || len(allowed) != 0 {
		t.Errorf("hosts %#v are allowed; nil would be every host", allowed)
	}
	if got := box.compiler().Capabilities().AllowNet; got == nil || len(got) != 0 {
		t.Errorf("the compiler allows hosts %#v", got)
	}
}
