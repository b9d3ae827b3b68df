// Package argocd runs the scripts of Argo CD's resource customizations as its controller and
// its API server do: in gopher-lua, with the libraries that a script in argocd-cm may use, for
// at most a second, and with what is returned read back by way of JSON
// (github.com/argoproj/argo-cd, util/lua).
package argocd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	lua "github.com/yuin/gopher-lua"
	luajson "layeh.com/gopher-json"
)

// timeout is how long a script may run.
const timeout = time.Second

// Health is what a health.lua says of an object.
type Health struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// statuses are those that Argo CD knows.
var statuses = []string{"Healthy", "Progressing", "Degraded", "Suspended", "Missing", "Unknown"}

// HealthOf runs a health.lua over an object, in any form that encodes to its JSON.
func HealthOf(script string, object any) (Health, error) {
	var h Health
	if err := run(script, object, &h); err != nil {
		return Health{}, err
	}
	if !slices.Contains(statuses, h.Status) {
		return Health{}, fmt.Errorf("health %q is none that Argo CD knows", h.Status)
	}
	return h, nil
}

// Action is one that a discovery.lua offers.
type Action struct {
	Name     string `json:"name"`
	Disabled bool   `json:"disabled"`
}

// ActionsOf runs a discovery.lua over an object; the actions are in the order of their names.
func ActionsOf(script string, object any) ([]Action, error) {
	var found map[string]Action
	if err := run(script, object, &found); err != nil {
		return nil, err
	}
	actions := make([]Action, 0, len(found))
	for name, a := range found {
		actions = append(actions, Action{name, a.Disabled})
	}
	slices.SortFunc(actions, func(a, b Action) int { return cmp.Compare(a.Name, b.Name) })
	return actions, nil
}

// PatchOf runs an action.lua over an object, and returns the JSON merge patch that Argo CD
// sends for it.
func PatchOf(script string, object any) ([]byte, error) {
	before, err := decoded(object)
	if err != nil {
		return nil, err
	}
	var after map[string]any
	if err := run(script, object, &after); err != nil {
		return nil, err
	}
	old, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	changed, err := json.Marshal(kept(after, before))
	if err != nil {
		return nil, err
	}
	return jsonpatch.CreateMergePatch(old, changed)
}

// kept has what was an empty object be one again: Lua tells it from an empty list no more.
func kept(after, before any) any {
	switch old := before.(type) {
	case map[string]any:
		if list, is := after.([]any); is && len(list) == 0 {
			return old
		}
		if object, is := after.(map[string]any); is {
			for key := range object {
				object[key] = kept(object[key], old[key])
			}
		}
	case []any:
		if list, is := after.([]any); is {
			for i := range min(len(list), len(old)) {
				list[i] = kept(list[i], old[i])
			}
		}
	}
	return after
}

// decoded is an object as encoding/json decodes it: every number is a float64.
func decoded(object any) (any, error) {
	body, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var value any
	return value, json.Unmarshal(body, &value)
}

// run runs a script with obj set to an object, and decodes the table that it returns into result.
func run(script string, object, result any) error {
	value, err := decoded(object)
	if err != nil {
		return err
	}
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer l.Close()
	for name, open := range map[string]lua.LGFunction{lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		if err := l.CallByParam(lua.P{Fn: l.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			return fmt.Errorf("open library %q: %w", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	l.SetContext(ctx)
	l.SetGlobal("obj", luajson.DecodeValue(l, value))
	if err := l.DoString(script); err != nil {
		return fmt.Errorf("run script: %w", err)
	}
	returned, is := l.Get(-1).(*lua.LTable)
	if !is {
		return fmt.Errorf("the script returned no table but %s", l.Get(-1).Type())
	}
	body, err := luajson.Encode(returned)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, result)
}
