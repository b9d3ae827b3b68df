package mirror

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// issuer signs tokens as an API server does.
type issuer struct {
	signer jose.Signer
	public jose.JSONWebKeySet
}

func newIssuer(id string) *issuer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		panic(err)
	}
	return &issuer{signer, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: id, Algorithm: "ES256", Use: "sig"}}}}
}

// token is of an account on a node; id makes it one of its own. change changes what
// it says.
func (i *issuer) token(subject, node, id string, change ...func(*jwt.Claims)) string {
	standard := jwt.Claims{Subject: subject, ID: id, Audience: jwt.Audience{Audience}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}
	for _, f := range change {
		f(&standard)
	}
	var private kubernetes
	private.Private.Node.Name = node
	token, err := jwt.Signed(i.signer).Claims(standard).Claims(private).Serialize()
	if err != nil {
		panic(err)
	}
	return token
}

// keys is Server.SigningKeys.
func (i *issuer) keys(context.Context) ([]byte, error) { return json.Marshal(i.public) }

// claimedNode is the node that a token names.
func claimedNode(token string) string {
	t, err := jwt.ParseSigned(token, algorithms())
	if err != nil {
		return ""
	}
	var private kubernetes
	_ = t.UnsafeClaimsWithoutVerification(&private)
	return private.Private.Node.Name
}
