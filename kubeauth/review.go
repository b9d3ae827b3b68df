package kubeauth

// The reviews as JSON, with what is asked and read of them: the types of
// k8s.io/api would bring all of its kinds' neighbours into the agent. Their fields
// are those of authentication.k8s.io/v1 and authorization.k8s.io/v1.

// meta says which kind an object is of.
type meta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// tokenReview asks whose a token is.
type tokenReview struct {
	meta
	Spec struct {
		Token string `json:"token"`
	} `json:"spec"`
	Status struct {
		Authenticated bool `json:"authenticated"`
		User          user `json:"user"`
	} `json:"status"`
}

// user is whom a token is of.
type user struct {
	Username string              `json:"username"`
	UID      string              `json:"uid,omitempty"`
	Groups   []string            `json:"groups,omitempty"`
	Extra    map[string][]string `json:"extra,omitempty"`
}

// accessReview asks whether a user may do something.
type accessReview struct {
	meta
	Spec struct {
		User                  string              `json:"user"`
		UID                   string              `json:"uid,omitempty"`
		Groups                []string            `json:"groups,omitempty"`
		Extra                 map[string][]string `json:"extra,omitempty"`
		NonResourceAttributes path                `json:"nonResourceAttributes"`
	} `json:"spec"`
	Status struct {
		Allowed bool `json:"allowed"`
	} `json:"status"`
}

// path is what is to be done with which path.
type path struct {
	Path string `json:"path"`
	Verb string `json:"verb"`
}
