package sysdump

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/skep-dev/skep/cmd/skep/internal/cluster"
)

// allowed lists what an archive may have, by kinds of objects.
//
//go:embed allowed.txt
var allowed string

// leftOut stands for what is left out.
const leftOut = "(left out)"

// The ways in which what a path leads to is kept: its value, if it is no object, all below it, its name alone, Skep's and Flux's
// annotations, and flags without their values.
const (
	asValue  = ""
	asAll    = "all"
	asHidden = "hidden"
	asOurs   = "ours"
	asFlags  = "flags"
)

// shape is what is kept of an object.
type shape struct {
	fields map[string]*shape
	how    string
}

// shapeOf reads sections of the list into one shape. A later one has the last word on a path. "SECTION at PATH" is one below a path.
func shapeOf(sections ...string) *shape {
	s := &shape{}
	for _, name := range sections {
		name, below, nested := strings.Cut(name, " at ")
		_, body, _ := strings.Cut(allowed, "\n["+name+"]\n")
		body, _, _ = strings.Cut(body, "\n[")
		for line := range strings.Lines(body) {
			path, how, _ := strings.Cut(strings.TrimSpace(line), " = ")
			if path == "" || strings.HasPrefix(path, "#") {
				continue
			}
			if nested {
				path = below + "." + path
			}
			s.add(strings.Split(path, "."), how)
		}
	}
	return s
}

// add adds a path.
func (s *shape) add(path []string, how string) {
	switch {
	case len(path) == 0:
		s.how = how
		return
	case path[0] == "**":
		s.how = asAll
		return
	case s.fields == nil:
		s.fields = map[string]*shape{}
	}
	for name := range strings.SplitSeq(strings.Trim(path[0], "{}"), ",") {
		if s.fields[name] == nil {
			s.fields[name] = &shape{}
		}
		s.fields[name].add(path[1:], how)
	}
}

// redact returns what the shape keeps of a value of JSON, and scrubs its texts. It leaves the value as it is, and returns nil for what
// is not kept.
func (s *shape) redact(value any, scrub func(string) string) any {
	switch v := value.(type) {
	case map[string]any:
		return s.object(v, scrub)
	case []any:
		if s.how == asHidden {
			return leftOut
		}
		if s.how == asFlags {
			return flags(v)
		}
		all := make([]any, len(v))
		for i := range v {
			all[i] = s.redact(v[i], scrub)
		}
		return all
	}
	switch {
	case s.how == asHidden:
		return leftOut
	case len(s.fields) > 0 && s.how != asAll:
		return nil
	}
	if text, isText := value.(string); isText {
		return scrub(text)
	}
	return value
}

// object is redact of an object.
func (s *shape) object(v map[string]any, scrub func(string) string) any {
	if s.how == asHidden {
		return leftOut
	}
	kept := map[string]any{}
	for name, value := range v {
		field := s.fields[name]
		switch {
		case s.how == asAll:
			field = s
		case s.how == asOurs && isOurs(name):
			field = &shape{}
		case field == nil:
			field = s.fields["*"]
		}
		if field == nil {
			continue
		}
		if one := field.redact(value, scrub); one != nil {
			kept[name] = one
		}
	}
	if s.how == asAll {
		hideByPath(kept)
	}
	return kept
}

// isOurs reports whether an annotation is Skep's or Flux's. Others may be the whole object, such as kubectl's last-applied-configuration.
func isOurs(annotation string) bool {
	domain, _, _ := strings.Cut(annotation, "/")
	for _, ours := range []string{"skep.dev", "fluxcd.io"} {
		if domain == ours || strings.HasSuffix(domain, "."+ours) {
			return true
		}
	}
	return false
}

// plain is a value of a flag that is no secret.
var plain = regexp.MustCompile(`^(true|false|[0-9]{1,5}(\.[0-9]+)?(ms|s|m|h|Ki|Mi|Gi|k|M|G|%)?)$`)

// flags keeps names of flags, and the values that are plain.
func flags(args []any) (kept []any) {
	for _, arg := range args {
		text, _ := arg.(string)
		name, value, given := strings.Cut(text, "=")
		switch {
		case !strings.HasPrefix(text, "-") && !plain.MatchString(text):
			text = leftOut
		case given && !plain.MatchString(value):
			text = name + "=" + leftOut
		}
		kept = append(kept, text)
	}
	return kept
}

// The paths whose messages may quote a value of a variable or a content of a map, and those below maps that do not.
var (
	hidesValues = regexp.MustCompile(`\b(variables|maps)\b`)
	hidesNone   = regexp.MustCompile(`\bmaps\.[^.\s:]+\.(maxEntries|valueSize|onUpdate|sharedWith|export|metrics|from)\b`)
)

// hideByPath leaves out what a reason or a problem says of a path that hides values.
func hideByPath(object map[string]any) {
	for _, name := range []string{"path", "field"} {
		path, _ := object[name].(string)
		if !hidesValues.MatchString(path) || hidesNone.MatchString(path) {
			continue
		}
		for _, said := range []string{"message", "fix"} {
			if object[said] != nil {
				object[said] = leftOut
			}
		}
	}
}

// scrubber takes out of texts what was left out of objects, as far as it was learned, and what looks like a credential.
type scrubber struct {
	secrets  map[string]bool
	replacer *strings.Replacer
	// size is that of all secrets, and full reports that there was no room for more.
	size int
	full bool
}

// The bounds of what is learned. A shorter value is in too many texts that are about something else.
const (
	minSecret  = 6
	maxSecrets = 8 << 20
)

// learn has the values of variables and the contents of maps of an application taken out of texts.
func (s *scrubber) learn(application map[string]any) {
	spec, _ := application["spec"].(map[string]any)
	s.collect(spec["variables"])
	definitions, _ := spec["maps"].(map[string]any)
	for _, one := range definitions {
		if m, ok := one.(map[string]any); ok {
			s.collect(m["contents"])
		}
	}
	// Of an intent, there is the version before, too.
	if previous, has := spec["previous"]; has {
		s.learn(map[string]any{"spec": previous})
	}
	s.replacer = nil
}

// learnSealed is learn of what an envelope holds. A seal that does not hold does not matter here.
func (s *scrubber) learnSealed(body []byte) {
	var envelope struct {
		Payload []byte `json:"payload"`
	}
	var payload any
	if json.Unmarshal(body, &envelope) == nil && cluster.Decode(envelope.Payload, &payload) == nil {
		s.learn(map[string]any{"spec": payload})
	}
}

// collect notes the values below a value. Numbers are in logs of the verifier in hexadecimal, too.
func (s *scrubber) collect(value any) {
	switch v := value.(type) {
	case map[string]any:
		for _, one := range v {
			s.collect(one)
		}
	case []any:
		for _, one := range v {
			s.collect(one)
		}
	case string:
		s.note(v)
		if number, err := strconv.ParseUint(v, 0, 64); err == nil {
			s.note(strconv.FormatUint(number, 10))
			s.note("0x" + strconv.FormatUint(number, 16))
		}
		// A register has a negative number in 64 bits, or in 32.
		if number, err := strconv.ParseInt(v, 0, 64); err == nil && number < 0 {
			s.note(fmt.Sprintf("0x%x", uint64(number)))
			s.note(fmt.Sprintf("0x%x", uint32(number)))
		}
	case json.Number:
		s.collect(v.String())
	}
}

// note notes a secret.
func (s *scrubber) note(secret string) {
	if len(secret) < minSecret || s.secrets[secret] {
		return
	}
	if s.size+len(secret) > maxSecrets {
		s.full = true
		return
	}
	if s.secrets == nil {
		s.secrets = map[string]bool{}
	}
	s.secrets[secret], s.size = true, s.size+len(secret)
}

// What looks like a credential, or quotes a value, and what is left of it.
var credentials = []struct {
	pattern *regexp.Regexp
	left    string
}{
	{regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z ]*PRIVATE KEY-----|$)`), leftOut},
	{regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s/"'<>]*@`), "$1"},
	{regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s?"'<>]*)\?[^\s"'<>]*`), "$1?" + leftOut},
	{regexp.MustCompile(`\beyJ[\w-]{8,}\.[\w-]+(\.[\w-]*)?`), leftOut},
	{regexp.MustCompile(`(?i)\b(bearer|basic) [\w.~+/=-]{16,}`), "$1 " + leftOut},
	{regexp.MustCompile(`(?i)\b(password|passwd|token|secret|authorization)(\\?["']?[:=] ?\\?["']?)[^\s"',;\\]+`), "$1$2" + leftOut},
	{regexp.MustCompile(`\b((?:variables(?:\.[^\s:"\\]+)?|spec\.maps(?:\.[^\s:."\\]+)?|maps\.[^\s:"\\]+\.contents[^\s:"\\]*):) [^\n]*`), "$1 " + leftOut},
}

// userinfo is a user and a password before a host without a scheme; a tag before a digest is none.
var userinfo = regexp.MustCompile(`[^\s/:@"'=(]+:[^\s/@"']+@(sha256:)?`)

// text scrubs a text of an object. Names and such have no spaces, and may be equal to a value.
func (s *scrubber) text(in string) string {
	if strings.ContainsAny(in, " \n") {
		return s.log(in)
	}
	return withoutCredentials(in)
}

// log scrubs any text.
func (s *scrubber) log(in string) string {
	if s.replacer == nil {
		var pairs []string
		// A secret may begin with another: the longer one is taken out whole.
		for _, secret := range slices.SortedFunc(maps.Keys(s.secrets), func(a, b string) int { return len(b) - len(a) }) {
			pairs = append(pairs, secret, leftOut)
		}
		s.replacer = strings.NewReplacer(pairs...)
	}
	return withoutCredentials(s.replacer.Replace(in))
}

// withoutCredentials takes out what looks like a credential.
func withoutCredentials(in string) string {
	// Each has one of these, and most names have none.
	if !strings.ContainsAny(in, " :=@.?") {
		return in
	}
	for _, c := range credentials {
		in = c.pattern.ReplaceAllString(in, c.left)
	}
	return userinfo.ReplaceAllStringFunc(in, func(found string) string {
		if strings.HasSuffix(found, "@sha256:") {
			return found
		}
		return ""
	})
}
