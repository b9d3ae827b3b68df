package transport

import (
	"bytes"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// wordsLimit bounds what is read of a rejection, in bytes; errors show less.
const wordsLimit = 64 << 10

// discreet takes the words from a registry's rejection where they repeat what it
// was shown: errors show those words to people who may see no credentials.
func (s *Secrets) discreet(req *http.Request, resp *http.Response) {
	if resp.StatusCode < http.StatusBadRequest {
		return
	}
	secrets := shownBy(req)
	if len(secrets) == 0 {
		return
	}
	words, err := io.ReadAll(io.LimitReader(resp.Body, wordsLimit))
	_ = resp.Body.Close()
	short := slices.ContainsFunc(secrets, func(secret string) bool { return bytes.Contains(words, []byte(secret)) })
	if err != nil || short || s.inWords(string(words)) {
		words = nil
	}
	resp.Body = io.NopCloser(bytes.NewReader(words))
	resp.ContentLength = int64(len(words))
	resp.Header.Del("Content-Length")
}

// shownBy are the secrets that a request shows: in its header, or in the form by
// which a token is asked for.
func shownBy(req *http.Request) []string {
	if req.GetBody != nil && req.Header.Get("Content-Type") == "application/x-www-form-urlencoded" {
		return inForm(req)
	}
	scheme, shown, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if shown == "" {
		return nil
	}
	secrets := []string{shown}
	if !strings.EqualFold(scheme, "Basic") {
		return secrets
	}
	if plain, err := base64.StdEncoding.DecodeString(shown); err == nil {
		if _, password, _ := strings.Cut(string(plain), ":"); password != "" {
			secrets = append(secrets, password)
		}
	}
	return secrets
}

func inForm(req *http.Request) []string {
	body, err := req.GetBody()
	if err != nil {
		return nil
	}
	defer func() { _ = body.Close() }()
	encoded, err := io.ReadAll(io.LimitReader(body, wordsLimit))
	form, badForm := url.ParseQuery(string(encoded))
	if err != nil || badForm != nil {
		return nil
	}
	var secrets []string
	for _, field := range []string{"refresh_token", "password"} {
		if secret := form.Get(field); secret != "" {
			secrets = append(secrets, secret)
		}
	}
	return secrets
}
