package signing

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// demands are what a party asks of a signature that is its own.
type demands struct {
	annotations map[string]string
	// identities are those of a keyless signer; one must match.
	identities []identity
	// log and timestamp are what a key's signature must come with.
	log, timestamp bool
	// notBefore and notAfter bound the trusted time; zero means unbounded.
	notBefore, notAfter time.Time
}

func newDemands(s v1alpha1.BpfSignerSpec) demands {
	d := demands{annotations: s.Annotations, notBefore: timeOf(s.NotBefore), notAfter: timeOf(s.NotAfter)}
	if s.Key != nil {
		d.log, d.timestamp = s.Key.TransparencyLog == v1alpha1.DemandRequired, s.Key.Timestamp == v1alpha1.DemandRequired
	}
	return d
}

// timeOf is a time, zero where there is none.
func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// excludes reports whether no signature can be as both demand: they ask for other values of
// an annotation, or for times that never meet.
func (d *demands) excludes(o demands) bool {
	for key, value := range d.annotations {
		if other, demanded := o.annotations[key]; demanded && other != value {
			return true
		}
	}
	over := func(end, start time.Time) bool { return !end.IsZero() && !start.IsZero() && end.Before(start) }
	return over(d.notAfter, o.notBefore) || over(o.notAfter, d.notBefore)
}

// disowned says why a signature that was made as a party's are is another's: an
// annotation or a claim tells them apart. Nil where it is the party's.
func (d *demands) disowned(c *claim, found proof) error {
	if lack := missing(d.annotations, c.annotations); lack != "" {
		return fmt.Errorf("its payload lacks the annotation %s that the signer must give: sign with it", lack)
	}
	if len(d.identities) == 0 {
		return nil
	}
	reason := errors.New("its certificate is of another issuer or subject than the signer's")
	for _, i := range d.identities {
		if !i.issuer.matches(found.issuer) || !i.subject.matches(found.subject) {
			continue
		}
		if reason = i.lacks(found.claims); reason == nil {
			return nil
		}
	}
	return reason
}

// unmet says what a party's own signature lacks to count; nil where it counts.
func (d *demands) unmet(found proof) error {
	w := found.witness
	switch {
	case found.untrue != nil:
		return found.untrue
	case d.log && !w.logged:
		return errors.New("no entry of a transparency log in the signer's trusted root comes with it, and the signer says transparencyLog: Required: " +
			"sign with such a log")
	case d.timestamp && !w.stamped:
		return errors.New("no timestamp of an authority in the signer's trusted root comes with it, and the signer says timestamp: Required: " +
			"sign with such an authority")
	case d.notBefore.IsZero() && d.notAfter.IsZero():
		return nil
	case w.time.IsZero():
		return errors.New("it has no trusted time, and the signer has notBefore or notAfter: sign with a transparency log or timestamp authority of its trusted root")
	case w.time.Before(d.notBefore):
		return fmt.Errorf("it was made at %s, and the signer counts from notBefore: %s on: sign again", stamp(w.time), stamp(d.notBefore))
	case !d.notAfter.IsZero() && !w.time.Before(d.notAfter):
		return fmt.Errorf("it was made at %s, and the signer counts no more from notAfter: %s on: let somebody else sign", stamp(w.time), stamp(d.notAfter))
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// matcher compares a text with an exact value, or with an expression where there is
// one.
type matcher struct {
	// text is the value or the expression as it is written.
	text       string
	expression *regexp.Regexp
}

// newMatcher reads one of the two. An expression matches the whole text; it is compiled
// by itself first, so that it cannot close the group that the anchors hold.
func newMatcher(exact, expression string) (matcher, error) {
	switch {
	case exact == "" && expression == "":
		return matcher{}, errors.New("it is not limited: give the exact value or a regular expression (.* for any)")
	case exact != "" && expression != "":
		return matcher{}, errors.New("an exact value and a regular expression are both given: keep one")
	case expression == "":
		return matcher{text: exact}, nil
	}
	if _, err := regexp.Compile(expression); err != nil {
		return matcher{}, fmt.Errorf("the regular expression does not compile: write it in RE2 syntax: %w", err)
	}
	anchored, err := regexp.Compile(`\A(?:` + expression + `)\z`)
	if err != nil {
		return matcher{}, fmt.Errorf("the regular expression does not compile: write it in RE2 syntax: %w", err)
	}
	return matcher{text: expression, expression: anchored}, nil
}

// words are the value and the expression as other verifiers take them, of which one is
// empty.
func (m matcher) words() (exact, expression string) {
	if m.expression != nil {
		return "", m.expression.String()
	}
	return m.text, ""
}

func (m matcher) matches(text string) bool {
	if m.expression != nil {
		return m.expression.MatchString(text)
	}
	return text == m.text
}

// String is for a person to read.
func (m matcher) String() string {
	if m.expression != nil {
		return "what matches " + m.text
	}
	return fmt.Sprintf("%q", m.text)
}

// identity is one of those of a keyless signer.
type identity struct {
	issuer, subject matcher
	claims          []claimMatcher
}

// claimMatcher is what a claim of the certificate must be.
type claimMatcher struct {
	name string
	matcher
}

// newIdentity reads one identity. Issuer and subject must both be limited, each in one
// way: half an identity would trust everyone an issuer knows, or everyone who can name
// an issuer.
func newIdentity(m v1alpha1.IdentityMatch) (i identity, err error) {
	if i.issuer, err = newMatcher(m.Issuer, m.IssuerRegExp); err != nil {
		return i, fmt.Errorf("issuer: %w", err)
	}
	if i.subject, err = newMatcher(m.Subject, m.SubjectRegExp); err != nil {
		return i, fmt.Errorf("subject: %w", err)
	}
	for _, c := range m.Claims {
		claim, err := newMatcher(c.Value, c.ValueRegExp)
		if err != nil {
			return i, fmt.Errorf("claim %s: %w", c.Name, err)
		}
		if !isClaim(c.Name) {
			return i, fmt.Errorf("claim %q: certificates make no such claim: see docs/api.md", c.Name)
		}
		i.claims = append(i.claims, claimMatcher{c.Name, claim})
	}
	return i, nil
}

// lacks says which claim is another than the identity's; nil where all are as they
// must be.
func (i identity) lacks(claims Claims) error {
	if len(i.claims) == 0 {
		return nil
	}
	made, err := claims.byName()
	if err != nil {
		return err
	}
	for _, c := range i.claims {
		switch value := made[c.name]; {
		case value == "":
			return fmt.Errorf("its certificate makes no claim %s, and the signer asks for %s: sign where it is made", c.name, c.matcher)
		case !c.matches(value):
			return fmt.Errorf("its certificate claims %s %q, and the signer asks for %s: sign there, or change the signer's claims", c.name, value, c.matcher)
		}
	}
	return nil
}
