package source

import "testing"

func TestOneSourceIsOneOriginHoweverItIsSpelt(t *testing.T) {
	for name, test := range map[string]struct {
		a, b Options
		same bool
	}{
		"another password":            {Options{Address: "https://u:a@h/x.git"}, Options{Address: "https://u:b@h/x.git"}, true},
		"a token instead of a user":   {Options{Address: "https://token@h/x.git"}, Options{Address: "https://h/x.git"}, true},
		"a path of dots":              {Options{Address: "/x", Path: "."}, Options{Address: "/x"}, true},
		"a folder with a slash":       {Options{Address: "/x/"}, Options{Address: "/x"}, true},
		"another host":                {Options{Address: "https://h/x.git"}, Options{Address: "https://i/x.git"}, false},
		"another repository over ssh": {Options{Address: "git@h:x.git"}, Options{Address: "git@h:y.git"}, false},
		"another local repository":    {Options{Address: "file:///x"}, Options{Address: "file:///y"}, false},
		"another ref":                 {Options{Address: "/x", Ref: "main"}, Options{Address: "/x", Ref: "v1"}, false},
		"another path":                {Options{Address: "/x", Path: "a"}, Options{Address: "/x", Path: "b"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.a.Origin() == test.b.Origin(); got != test.same {
				t.Errorf("%s and %s: same %t, want %t", test.a.Origin(), test.b.Origin(), got, test.same)
			}
		})
	}
}

func TestAnAddressIsShownWithoutSecretsAndAFolderWhole(t *testing.T) {
	t.Chdir(t.TempDir())
	here := Options{Address: "."}.Origin().Address
	for address, want := range map[string]string{
		"defs": here + "/defs", "/srv/defs": "/srv/defs", "https://u:secret@h/x.git?token=secret": "https://h/x.git",
		"git@h:x.git": "git@h:x.git", "ssh://git@h/x.git": "ssh://git@h/x.git", "file:///srv/defs": "file:///srv/defs",
	} {
		if got := (Options{Address: address}).Shown(); got != want {
			t.Errorf("%s is shown as %s, want %s", address, got, want)
		}
	}
}
