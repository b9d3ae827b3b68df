package policies

import (
	"encoding/json"
	"fmt"

	"github.com/open-policy-agent/opa/v1/util"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
)

// baseData is what every policy sees beside the input: data.hooks, the rows of
// hook.All by name, data.helpers, the rows of bytecode.Helpers by name, and
// data.kfuncs, those of bytecode.RiskyKfuncs.
func baseData() (map[string]any, error) {
	hooks := map[string]hook.Hook{}
	for _, h := range hook.All() {
		h.Sections = list(h.Sections)
		hooks[h.Name] = h
	}
	helpers := map[string]bytecode.Helper{}
	for _, h := range bytecode.Helpers() {
		helpers[h.Name] = h
	}
	kfuncs := map[string]bytecode.Kfunc{}
	for _, k := range bytecode.RiskyKfuncs() {
		kfuncs[k.Name] = k
	}
	body, err := json.Marshal(map[string]any{"hooks": hooks, "helpers": helpers, "kfuncs": kfuncs})
	if err != nil {
		return nil, fmt.Errorf("write the data policies see: %w", err)
	}
	var data map[string]any
	if err := util.UnmarshalJSON(body, &data); err != nil {
		return nil, fmt.Errorf("read the data policies see: %w", err)
	}
	return data, nil
}
