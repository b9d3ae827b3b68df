package archives

import "testing"

func TestAnAddressOfAPodHasThePortThatIsServed(t *testing.T) {
	for o, want := range map[Options]string{
		{Address: ":9790", Advertised: "10.0.0.7"}:      "10.0.0.7:9790",
		{Address: ":9790", Advertised: "fd00::7"}:       "[fd00::7]:9790",
		{Address: ":9790", Advertised: "10.0.0.7:80"}:   "10.0.0.7:80",
		{Address: ":9790", Advertised: "artifacts.svc"}: "artifacts.svc",
		{Address: ":9790"}:                              "",
	} {
		if got := o.advertised(); got != want {
			t.Errorf("%+v is advertised as %q, want %q", o, got, want)
		}
	}
}
