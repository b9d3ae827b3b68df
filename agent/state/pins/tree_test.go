package pins

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestOnlyNamesThatSkepGivesAreSkeps(t *testing.T) {
	hash := strings.Repeat("0f", 16)
	for path, own := range map[string]bool{
		"+xdp":                  true,
		"+other":                false,
		"uid-1":                 true,
		"b2%2ec":                true,
		"b2%2Ec":                false,
		"a%zz":                  false,
		"uid/" + hash:           true,
		"uid/" + hash[1:]:       false,
		"uid/" + hash[1:] + "F": false,
		"uid/+links":            true,
		"uid/+new-" + hash:      true,
		"uid/+old-" + hash:      true,
		"uid/+xdp":              false,
		"uid/stray":             false,
		"uid/" + hash + "/p-f":  true,
		"uid/" + hash + "/p-f%40tp_btf%2fsys_enter":   true,
		"uid/" + hash + "/p-f+1":                      true,
		"uid/" + hash + "/p-f+01":                     false,
		"uid/" + hash + "/p-f+x":                      false,
		"uid/" + hash + "/p-":                         false,
		"uid/" + hash + "/p-a%":                       false,
		"uid/" + hash + "/m-%2ebss":                   true,
		"uid/" + hash + "/m-%2ebss+layout":            true,
		"uid/" + hash + "/m-%2ebss+other":             false,
		"uid/" + hash + "/f":                          false,
		"uid/+links/" + hash:                          true,
		"uid/+links/" + hash + "+at":                  true,
		"uid/+links/+new-" + hash + "+at":             true,
		"uid/+links/link":                             false,
		"+xdp/7":                                      true,
		"+xdp/07":                                     false,
		"+xdp/-7":                                     false,
		"+xdp/0":                                      false,
		"+xdp/eth0":                                   false,
		"+xdp/7/link":                                 true,
		"+xdp/7/prog":                                 false,
		"+xdp/7/" + hash:                              true,
		"+xdp/7/" + hash + "/prog":                    true,
		"+xdp/7/" + hash + "/runs":                    true,
		"+xdp/7/" + hash + "/member-000":              true,
		"+xdp/7/" + hash + "/link":                    false,
		"+xdp/7/+new-" + hash + "/member-000":         true,
		"uid/+new-" + hash + "/" + hash + "/p-nested": false,
	} {
		is := Owns("/pins/", "/pins/"+path)
		if is != own {
			t.Errorf("%s is Skep's: %v", path, is)
		}
		if Owns("/pins", "/pinsof/"+path) {
			t.Errorf("%s is Skep's in another directory", path)
		}
	}
}

func TestEveryPinBearsANameOfSkeps(t *testing.T) {
	s, root := store(t)
	load(t, s, tracer(t, "1"), nil)
	if strays, err := s.Strays(); err != nil || len(strays) > 0 {
		t.Errorf("Strays = %v, %v", strays, err)
	}
	dirs, err := s.Directories()
	if err != nil || !slices.Contains(dirs, filepath.Join(root, "uid")) || len(dirs) != 3 {
		t.Errorf("Directories = %v, %v", dirs, err)
	}
}
