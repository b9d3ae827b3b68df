package mirror

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/sync/singleflight"
	ctrl "sigs.k8s.io/controller-runtime"
)

// The bounds of a token: in bytes, of which Kubernetes' own take one to two
// thousand, and by how much the clocks of controller and API server may differ.
const (
	maxToken = 16 << 10
	skew     = time.Minute
)

// claims is what a token says of itself. Without a proof nobody vouches for it.
type claims struct {
	token *jwt.JSONWebToken
	// subject is the user name; node is where the token's Pod is, empty where it is
	// bound to none.
	subject, node string
}

// kubernetes are the claims of Kubernetes' own.
type kubernetes struct {
	Private struct {
		Node struct {
			Name string `json:"name"`
		} `json:"node"`
	} `json:"kubernetes.io"`
}

// algorithms are those that an API server signs service account tokens with.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}
}

// parse reads what a token says of itself. One that no API server could accept for
// the mirror is denied without asking one: it is no JSON Web Token, too large,
// too old, of another audience, or of another account.
func (v *reviewer) parse(token string) (claims, error) {
	if len(token) > maxToken {
		return claims{}, errUnauthorized
	}
	t, err := jwt.ParseSigned(token, algorithms())
	if err != nil {
		return claims{}, errUnauthorized
	}
	var standard jwt.Claims
	var private kubernetes
	if err := t.UnsafeClaimsWithoutVerification(&standard, &private); err != nil {
		return claims{}, errUnauthorized
	}
	if !standard.Audience.Contains(Audience) || standard.Expiry == nil || standard.Expiry.Time().Add(skew).Before(v.now()) {
		return claims{}, errUnauthorized
	}
	if standard.Subject == "" || standard.Subject != v.agent && standard.Subject != v.replica {
		return claims{}, errForbidden
	}
	return claims{token: t, subject: standard.Subject, node: private.Private.Node.Name}, nil
}

// proof is what the published keys say of a token's signature.
type proof int

// The proofs: unproven is a token of a key that is not published, forged is one
// that names a published key, which did not sign it.
const (
	unproven proof = iota
	proven
	forged
)

// The bounds of fetching keys: how often because a token names one that is not
// among them, and how long it may take.
const (
	keysEvery  = 10 * time.Second
	keysWithin = 2 * time.Second
)

// signingKeys are those that the API server signs service account tokens with, as it
// publishes them. They give a token precedence and nothing else: the API server
// reviews each token all the same, since it also knows whether its Pod is there.
type signingKeys struct {
	// fetch is nil where they are not known.
	fetch func(context.Context) ([]byte, error)

	flights singleflight.Group
	mu      sync.Mutex
	set     jose.JSONWebKeySet
	// fetched is when the last attempt began; fresh reports whether it succeeded.
	fetched time.Time
	fresh   bool
}

// verify compares a token's signature with the key that it names. It fetches the
// keys anew before it says anything but proven.
func (k *signingKeys) verify(ctx context.Context, c claims, now time.Time) proof {
	if k.fetch == nil {
		return unproven
	}
	if signed, _ := k.compare(c.token); signed {
		return proven
	}
	k.refresh(ctx, now)
	switch signed, known := k.compare(c.token); {
	case signed:
		return proven
	case known:
		return forged
	}
	return unproven
}

// compare reports whether a published key signed a token, and whether the key that
// it names is known for sure.
func (k *signingKeys) compare(t *jwt.JSONWebToken) (signed, known bool) {
	k.mu.Lock()
	keys, fresh := k.set.Key(t.Headers[0].KeyID), k.fresh
	k.mu.Unlock()
	signed = slices.ContainsFunc(keys, func(key jose.JSONWebKey) bool { return t.Claims(key.Key, &jwt.Claims{}) == nil })
	return signed, fresh && len(keys) > 0
}

// refresh fetches the keys anew, unless that was tried a moment ago. Whoever asks
// meanwhile waits for the same fetch.
func (k *signingKeys) refresh(ctx context.Context, now time.Time) {
	_, _, _ = k.flights.Do("", func() (any, error) {
		if !k.due(now) {
			return nil, nil //nolint:nilnil // the result is in set
		}
		ctx, cancel := context.WithTimeout(ctx, keysWithin)
		defer cancel()
		var set jose.JSONWebKeySet
		published, err := k.fetch(ctx)
		if err == nil {
			err = json.Unmarshal(published, &set)
		}
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "fetch keys of service account tokens; agents' tokens wait with strangers'")
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.fresh = err == nil; k.fresh {
			k.set = set
		}
		return nil, nil //nolint:nilnil // the result is in set
	})
}

// due reports whether the keys are to be fetched, and has nobody else do it.
func (k *signingKeys) due(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	due := now.Sub(k.fetched) >= keysEvery
	if due {
		k.fetched = now
	}
	return due
}
